"""What the schema of the market refuses: each statement breaks one rule and no other."""

from __future__ import annotations


def insert_state(**overrides: object) -> str:
    values: dict[str, object] = {
        "tier": "'cpu'",
        "region": "'in'",
        "surge_ppm": 1_000_000,
        "target_ppm": 1_000_000,
        "step_ppm": 10_000,
        "direction": 0,
        "spot_microcredits_per_hour": 7,
        "reference_microcredits_per_hour": 7,
        "rate_card_version": "'0123456789abcdef'",
        "slot_count": 2,
        "busy_count": 1,
        "waiting_count": 0,
        "contested": "false",
        "seconds_mean": "NULL",
        "at": "now()",
        **overrides,
    }
    return f"INSERT INTO spot_states ({', '.join(values)}) VALUES ({', '.join(map(str, values.values()))})"


def insert_point(**overrides: object) -> str:
    values: dict[str, object] = {
        "tier": "'cpu'",
        "region": "'in'",
        "at": "now()",
        "surge_ppm": 1_000_000,
        "spot_microcredits_per_hour": 7,
        "reference_microcredits_per_hour": 7,
        "rate_card_version": "'0123456789abcdef'",
        "slot_count": 2,
        "busy_count": 1,
        "waiting_count": 0,
        **overrides,
    }
    return f"INSERT INTO spot_history ({', '.join(values)}) VALUES ({', '.join(map(str, values.values()))})"


def insert_index(**overrides: object) -> str:
    values: dict[str, object] = {
        "tier": "'cpu'",
        "region": "'in'",
        "at": "now()",
        "price_microcredits_per_hour": 7,
        "reference_microcredits_per_hour": 7,
        "rate_card_version": "'0123456789abcdef'",
        "deal_count": 1,
        "seconds": 60,
        **overrides,
    }
    return f"INSERT INTO price_index ({', '.join(values)}) VALUES ({', '.join(map(str, values.values()))})"


def insert_card(version: str) -> str:
    return f"INSERT INTO rate_cards (version, content) VALUES ('{version}', '')"


INSERT_CLOCK = "INSERT INTO market_clock (only_row, ticked_at) VALUES ({}, now())"

# Nothing is wrong with these: what is refused below is refused for what was changed.
POSSIBLE = [
    insert_card("0123456789abcdef"),
    INSERT_CLOCK.format("true"),
    insert_state(),
    insert_state(direction=-1, busy_count=2, seconds_mean=1, spot_microcredits_per_hour=0),
    insert_point(),
    insert_point(slot_count=0, busy_count=0, spot_microcredits_per_hour=0),
    insert_index(),
    insert_index(reference_microcredits_per_hour=0, seconds=1),
]

# The rows of tests/integration/test_schema.py's table, for the market.
IMPOSSIBLE = [
    ("rate_cards_version_check", insert_card("0123456789abcde")),
    ("rate_cards_version_check", insert_card("0123456789ABCDEF")),
    ("market_clock_only_row_check", INSERT_CLOCK.format("false")),
    ("spot_states_surge_check", insert_state(surge_ppm=0)),
    ("spot_states_surge_check", insert_state(target_ppm=0)),
    ("spot_states_surge_check", insert_state(step_ppm=-1)),
    ("spot_states_direction_check", insert_state(direction=2)),
    ("spot_states_price_check", insert_state(spot_microcredits_per_hour=-1)),
    ("spot_states_price_check", insert_state(reference_microcredits_per_hour=-1)),
    ("spot_states_counts_check", insert_state(busy_count=3)),
    ("spot_states_counts_check", insert_state(busy_count=-1)),
    ("spot_states_counts_check", insert_state(waiting_count=-1)),
    ("spot_states_seconds_check", insert_state(seconds_mean=0)),
    ("spot_history_surge_check", insert_point(surge_ppm=0)),
    ("spot_history_price_check", insert_point(spot_microcredits_per_hour=-1)),
    ("spot_history_counts_check", insert_point(busy_count=3)),
    ("spot_history_counts_check", insert_point(busy_count=-1)),
    ("spot_history_counts_check", insert_point(waiting_count=-1)),
    ("price_index_price_check", insert_index(price_microcredits_per_hour=0)),
    ("price_index_price_check", insert_index(reference_microcredits_per_hour=-1)),
    ("price_index_deals_check", insert_index(deal_count=0)),
    ("price_index_deals_check", insert_index(seconds=0)),
]
