"""What people do in the dashboard, from the way in to the money: a real hub, real agents, a real browser."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from tests.support.apart import run_apart
from tests.support.bugged_nodes import bug_node, forgive_node
from tests.support.earnings import insert_held_pay
from tests.support.held_transaction import hold_transaction
from tests.support.people import sign_up
from tests.support.web_stage import await_quiet, wait_until

SLOW = """
import time
for line in range(60):
    print("line", line, flush=True)
    time.sleep(0.25)
"""
WAY_IN_PASSWORD = "correct horse battery"


def test_somebody_new_makes_an_account_and_comes_back_with_the_password(stage, visitor) -> None:
    page = visitor().open("/sign-in/?new=1")
    page.get_by_label("Name").fill("Nia")
    page.get_by_label("Email").fill("nia@example.org")
    page.get_by_label("Password").fill(WAY_IN_PASSWORD)
    page.get_by_role("button", name="Create the account").click()
    page.get_by_text("Nia", exact=True).click()
    page.get_by_role("button", name="Sign out").click()
    page.get_by_role("link", name="Sign in").click()
    page.get_by_label("Email").fill("nia@example.org")
    page.get_by_label("Password").fill("not the password")
    page.get_by_role("button", name="Sign in", exact=True).click()
    expect(page.locator("[aria-invalid=true]")).to_be_visible()
    page.get_by_label("Password").fill(WAY_IN_PASSWORD)
    page.get_by_role("button", name="Sign in", exact=True).click()
    expect(page.get_by_text("Nia", exact=True)).to_be_visible()


def test_a_one_time_link_signs_in_and_works_once(stage, visitor) -> None:
    link = stage.call(stage.people["Dana"], "POST", "/v1/sign-in-links")["path"]
    window = visitor()
    page = window.open(link)
    expect(page.get_by_text("Dana", exact=True)).to_be_visible()
    other = visitor()
    expect(other.open(link).get_by_role("alert").first).to_be_visible()
    other.faults.clear()


def test_a_job_is_quoted_submitted_watched_and_read(stage, visitor) -> None:
    page = visitor(stage.people["Dana"]).open("/submit/")
    await_quiet(page)
    quote = page.get_by_test_id("quote")
    expect(quote).to_contain_text("Likely cost")
    before = quote.inner_text()
    page.get_by_label("Slices").fill("2")
    expect(quote).not_to_have_text(before)
    page.get_by_label("Name", exact=True).fill("from the browser")
    page.get_by_label("Script").fill(SLOW)
    expect(page.get_by_label("command", exact=True)).to_contain_text(
        "computepool run --name 'from the browser' --slices 2"
    )
    page.get_by_role("button", name="Submit 2 slices").click()
    page.wait_for_url(re.compile(r"/job/\?id="))
    # Nobody reloads: the stream brings it.
    expect(page.get_by_text("running").first).to_be_visible()
    log = page.get_by_test_id("log")
    expect(log).to_contain_text("line 3")
    seen = log.inner_text().count("line")
    wait_until(page, f"document.querySelector('[data-testid=log]')?.innerText.split('line').length > {seen + 4}")
    expect(page.get_by_text("succeeded").first).to_be_visible(timeout=60_000)
    expect(page.get_by_role("slider")).to_have_attribute("aria-valuetext", "slice 0, succeeded")
    cost = page.get_by_role("region", name="Cost")
    expect(cost.get_by_text("to owners")).to_be_visible()


def test_a_job_that_waits_says_why_and_what_would_help(stage, visitor) -> None:
    job = stage.submit(name="too large", command=["true"], requirements={"gpu": True, "vram_bytes": 80_000_000_000})
    page = visitor(stage.people["Dana"]).open(f"/job/?id={job}")
    why = page.get_by_role("region", name="Why it waits")
    expect(why).to_contain_text("vram")
    why.get_by_role("link", name="Submit it so").first.click()
    expect(page.get_by_label("GPU memory, GB")).not_to_have_value("80")
    stage.call(stage.people["Dana"], "POST", f"/v1/jobs/{job}/cancel")


def test_a_job_is_cancelled_after_a_question(stage, visitor) -> None:
    job = stage.submit(name="to be stopped", command=["sleep", "60"])
    page = visitor(stage.people["Dana"]).open(f"/job/?id={job}")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Keep it").click()
    assert stage.call(stage.people["Dana"], "GET", f"/v1/jobs/{job}")["state"] != "cancelled"
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Cancel the job").click()
    expect(page.get_by_text("cancelled").first).to_be_visible()


def test_pictures_and_numbers_that_a_job_made_are_shown(stage, visitor) -> None:
    jobs = {job["name"]: job["id"] for job in stage.call(stage.people["Dana"], "GET", "/v1/jobs")["jobs"]}
    window = visitor(stage.people["Dana"])
    page = window.open(f"/job/?id={jobs['mandelbrot']}")
    tiles = page.get_by_role("img", name="tile.ppm")
    expect(tiles).to_have_count(4)
    wait_until(page, "[...document.querySelectorAll('canvas[aria-label=\"tile.ppm\"]')].every((c) => c.width > 150)")
    other = window.open(f"/job/?id={jobs['sweep']}")
    other.get_by_role("button", name="Show").first.click()
    expect(other.get_by_role("img", name=re.compile("result.json. Last: loss"))).to_be_visible()


def test_a_node_is_drained_and_resumed(stage, visitor) -> None:
    asha = stage.people["Asha"]
    node = stage.call(asha, "GET", "/v1/nodes")["nodes"][0]
    page = visitor(asha).open("/nodes/")
    page.get_by_role("link", name=node["name"]).click()
    page.get_by_role("button", name="Drain").click()
    expect(page.get_by_text("draining").first).to_be_visible()
    assert stage.call(asha, "GET", f"/v1/nodes/{node['id']}")["state"] == "draining"
    page.get_by_role("button", name="Resume").click()
    stage.wait_for(
        lambda: stage.call(asha, "GET", f"/v1/nodes/{node['id']}")["state"], lambda state: state == "active"
    )


def test_an_owner_sets_a_floor(stage, visitor) -> None:
    chen = stage.people["Chen"]
    node = stage.call(chen, "GET", "/v1/nodes")["nodes"][0]["id"]
    page = visitor(chen).open(f"/node/?id={node}")
    page.get_by_label("Floor, credits per hour").fill("1.50")
    page.get_by_role("button", name="Save the terms").click()
    read = lambda: stage.call(chen, "GET", f"/v1/nodes/{node}")["offer"]["floor_microcredits_per_hour"]  # noqa: E731
    stage.wait_for(read, lambda floor: floor == 1_500_000)
    page.get_by_label("Floor, credits per hour").fill("0")
    page.get_by_role("button", name="Save the terms").click()
    stage.wait_for(read, lambda floor: floor == 0)


def test_a_top_up_is_asked_for_and_confirmed_by_the_operator(stage, visitor) -> None:
    dana = stage.people["Dana"]
    before = stage.call(dana, "GET", "/v1/credits")["available_microcredits"]
    page = visitor(dana).open("/wallet/")
    form = page.get_by_role("region", name="Top up", exact=True)
    form.get_by_label("Credits").fill("1")
    expect(form.get_by_text("At least 10")).to_be_visible()
    form.get_by_label("Credits").fill("123.45")
    form.get_by_role("button", name="Top up").click()
    expect(form.get_by_text("123.45 INR")).to_be_visible()
    desk = visitor(stage.operator).open("/operator/")
    desk.get_by_role("button", name="It was paid").first.click()
    stage.wait_for(
        lambda: stage.call(dana, "GET", "/v1/credits")["available_microcredits"] - before,
        lambda gained: gained == 123_450_000,
    )
    # The wallet hears of it by itself.
    expect(page.get_by_role("region", name="Top-ups").get_by_text("paid").first).to_be_visible()


def test_what_was_earned_is_cashed_out_and_approved(stage, visitor) -> None:
    bruno = stage.people["Bruno"]
    nodes = stage.call(bruno, "GET", "/v1/nodes")["nodes"]
    node = next(each for each in nodes if each["name"] == "rtx-3090")
    # So dear that a few seconds are enough to cash out.
    floor = 3_000_000_000_000
    stage.call(bruno, "PUT", f"/v1/nodes/{node['id']}/offer", json={"floor_microcredits_per_hour": floor})
    asked = {"tiers": ["rtx-3090"], "gpu": True, "ceiling_microcredits_per_hour": floor}
    job = stage.submit(name="dear", command=["sleep", "2"], wall_seconds=60, requirements=asked)
    assert stage.await_job(job)["state"] == "succeeded"
    stage.call(bruno, "PUT", f"/v1/nodes/{node['id']}/offer", json={})
    stage.wait_for(
        lambda: stage.call(bruno, "GET", "/v1/credits")["earned_microcredits"], lambda earned: earned > 600_000_000
    )
    page = visitor(bruno).open("/wallet/")
    card = page.get_by_role("region", name="Cash out", exact=True)
    card.get_by_label("Country").fill("in")
    card.get_by_label("Destination").fill("bruno@bank")
    card.get_by_role("button", name="Save").click()
    card.get_by_label("Credits").fill("500.00")
    card.get_by_role("button", name="Cash out").click()
    expect(page.get_by_role("region", name="Payouts").get_by_text(re.compile("requested|reserved"))).to_be_visible()
    desk = visitor(stage.operator).open("/operator/")
    desk.get_by_role("button", name="Approve").first.click()
    stage.wait_for(
        lambda: stage.call(bruno, "GET", "/v1/credits/payouts")["payouts"][0]["state"],
        lambda state: state not in ("requested", "reserved"),
    )


def test_an_operator_finds_a_strangers_job_and_stops_it(stage, visitor) -> None:
    job = stage.submit(name="somebody else's", command=["sleep", "60"])
    page = visitor(stage.operator).open("/operator/")
    page.get_by_label("Its id").fill(job)
    page.get_by_role("region", name="Events").get_by_title(job).first.click()
    page.get_by_role("heading", name="somebody else's").wait_for()
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Cancel the job").click()
    expect(page.get_by_text("cancelled").first).to_be_visible()
    assert stage.await_job(job)["state"] == "cancelled"


def test_disputes_are_decided_with_a_reason_that_both_sides_read(stage, visitor) -> None:
    owner, doubter = sign_up(stage.url, "owner"), sign_up(stage.url, "doubter")
    for verb, state in (("Uphold", "upheld"), ("Dismiss", "dismissed")):
        pay = run_apart(insert_held_pay(stage.dsn, owner.account_id, doubter.account_id))
        doubt = {"job_id": str(pay.job_id), "slice_index": 0, "reason": f"to be {state}"}
        opened = stage.call(doubter, "POST", "/v1/credits/disputes", json=doubt)["dispute"]
        page = visitor(stage.operator).open("/operator/")
        # The audit search below tells of it, too.
        disputes = page.get_by_role("region", name="Disputes", exact=True)
        row = disputes.get_by_role("row").filter(has_text=f"to be {state}")
        row.get_by_role("button", name=verb, exact=True).click()
        question = page.locator("dialog[open]")
        question.get_by_role("button", name=f"{verb} it").click()
        # Without a reason nothing is decided.
        expect(question).to_be_visible()
        read = lambda id=opened["id"]: stage.call(doubter, "GET", f"/v1/credits/disputes/{id}")["dispute"]  # noqa: E731
        assert read()["state"] == "open"
        question.get_by_label("Why").fill("looked at the picture")
        question.get_by_role("button", name=f"{verb} it").click()
        decided = stage.wait_for(read, lambda found: found["state"] != "open")
        assert (decided["state"], decided["note"]) == (state, "looked at the picture")
        expect(row).to_have_count(0)


def test_a_node_that_computed_wrongly_is_shown_with_what_it_got_wrong(stage, visitor) -> None:
    chen = stage.people["Chen"]
    node = stage.call(chen, "GET", "/v1/nodes")["nodes"][0]
    run_apart(bug_node(stage.dsn, node["id"], chen.account_id, wrong=2))
    page = visitor(stage.operator).open("/operator/")
    row = (
        page.get_by_role("region", name="Distrusted nodes", exact=True)
        .get_by_role("row")
        .filter(has_text=node["name"])
    )
    expect(row).to_contain_text("bugged")
    row.get_by_text("2 spans that others got otherwise").click()
    expect(row).to_contain_text("steps 10 to 20 of run")
    expect(row).to_contain_text("computed again by 2 others")
    row.get_by_role("link", name=node["name"]).click()
    expect(page.get_by_role("heading", name=node["name"])).to_be_visible()
    expect(page.get_by_role("region", name="Trust")).to_contain_text("bugged")
    # It works for the other tests again.
    run_apart(forgive_node(stage.dsn, node["id"]))


def test_a_key_is_made_shown_once_and_revoked(stage, visitor) -> None:
    window = visitor(stage.people["Dana"])
    page = window.open("/keys/")
    page.get_by_label("Name of a new key").fill("for the test")
    page.get_by_role("button", name="Make a key").click()
    secret = page.get_by_label("new key", exact=True).inner_text().strip()
    assert secret.startswith("cpk_")
    row = page.get_by_role("row").filter(has_text="for the test")
    row.get_by_role("button", name="Revoke").click()
    page.get_by_role("button", name="Revoke it").click()
    expect(row.get_by_text("revoked")).to_be_visible()
    again = window.open("/keys/")
    await_quiet(again)
    assert secret not in again.content()


def test_a_machine_that_joins_is_greeted(stage, visitor) -> None:
    from tests.support.agent_process import AgentProcess

    asha = stage.people["Asha"]
    page = visitor(asha).open("/join/")
    page.get_by_role("button", name="Make a key").click()
    expect(page.get_by_label("command", exact=True)).to_contain_text("--key cpk_")
    root = stage.hub.log_path.parent
    agent = AgentProcess(hub_url=stage.url, owner=asha, root=root, name="newcomer", profile="cpu-only").start()
    try:
        expect(page.get_by_text("newcomer is here")).to_be_visible(timeout=40_000)
    finally:
        agent.end()


def test_what_happens_is_on_the_map_at_once(stage, visitor) -> None:
    """From the hub's answer to the canvas, as the page itself sees it."""
    page = visitor().open("/")
    page.wait_for_selector("[data-live=live]")
    page.wait_for_selector("canvas[role=img]")
    job = stage.submit(name="on the map", command=["sleep", "4"])
    wait_until(page, "/[1-9]\\d* slices? running/.test(document.querySelector('canvas[role=img]')?.ariaLabel)")
    stage.await_job(job)
    wait_until(page, "document.querySelector('canvas[role=img]')?.ariaLabel.includes(' 0 slices running')")
    page.get_by_role("button", name="Graph").click()
    expect(page.get_by_role("img", name=re.compile("^Graph of"))).to_be_visible()


def test_a_long_write_transaction_elsewhere_freezes_no_page(stage, visitor) -> None:
    """The short form of a minute: it is held until the page has seen that it is there, and then a job goes by."""
    window = visitor()
    grid, jobs = window.open("/"), visitor(stage.people["Dana"]).open("/jobs/")
    for page in (grid, jobs):
        page.wait_for_selector("[data-live=live]")
    grid.wait_for_selector("canvas[role=img]")
    # Pages that are not sure ask again and again; this one gets no answer and has the stream alone.
    grid.route("**/v1/public/mesh", lambda route: route.abort())
    with hold_transaction(stage.dsn):
        # What is older than the transaction cannot be told from what it holds up, and the page says so.
        jobs.wait_for_selector("[data-live=old]", timeout=60_000)
        job = stage.submit(name="beside a transaction", command=["sleep", "4"])
        wait_until(
            grid,
            "/[1-9]\\d* slices? running/.test(document.querySelector('canvas[role=img]')?.ariaLabel)",
            seconds=60,
        )
        row = jobs.get_by_role("row").filter(has_text="beside a transaction")
        expect(row.get_by_text("succeeded")).to_be_visible(timeout=60_000)
        assert stage.await_job(job)["state"] == "succeeded"
    jobs.wait_for_selector("[data-live=live]", timeout=60_000)
    window.faults.clear()


def test_a_page_says_when_it_is_not_live_and_heals(stage, visitor) -> None:
    """The last of these tests: it takes the hub away."""
    window = visitor(stage.people["Dana"])
    page = window.open("/jobs/")
    page.wait_for_selector("[data-live=live]")
    stage.hub.stop()
    page.wait_for_selector("[data-live=away]")
    stage.hub.start()
    page.wait_for_selector("[data-live=live]")
    stage.submit(name="after the gap", command=["true"])
    expect(page.get_by_role("link", name="after the gap")).to_be_visible()
    window.faults.clear()
