"""A network is watched while it trains, and while a machine under it dies."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.support.staged_run import WAIT_SECONDS, open_run
from tests.support.web_stage import wait_until

WAIT_MILLISECONDS = WAIT_SECONDS * 1_000


def await_step(page: Page, step: int) -> None:
    """Nobody reloads: the page itself must come that far."""
    wait_until(
        page,
        "(() => { const told = [...document.querySelectorAll('dl > div')]"
        ".find((each) => each.querySelector('dt')?.textContent === 'Step')?.querySelector('dd')?.textContent ?? '';"
        f" return Number(told.split('of')[0].replace(/\\D/g, '')) >= {step}; }})()",
        seconds=WAIT_SECONDS,
    )


@pytest.mark.timeout(600)
def test_a_network_is_watched_while_it_trains_through_a_kill(stage, visitor, tmp_path) -> None:
    with open_run(stage, tmp_path, name="digits") as run:
        window = visitor(stage.people["Dana"])
        page = window.open("/networks/")
        page.get_by_role("link", name="digits").first.click()
        curve = page.get_by_role("img", name=re.compile(r"^Loss by step\. Last: Loss [0-9]"))
        expect(curve).to_be_visible(timeout=WAIT_MILLISECONDS)
        expect(page.get_by_role("img", name=re.compile("^VNodes and their seats: .*a on seat-"))).to_be_visible()
        await_step(page, run.await_step(30))
        page.get_by_role("button", name="throughput").click()
        expect(
            page.get_by_role("img", name=re.compile(r"^Samples per second by step\. Last: .* [0-9]"))
        ).to_be_visible()
        page.get_by_role("button", name="loss").click()

        seat = run.get()["seats"][-1]["seat"]
        host = run.find_host(seat)
        before = run.get()["run"]["step"]
        host.cut_power()
        marks = page.get_by_role("list", name="What happened")
        expect(marks).to_contain_text("failure", timeout=WAIT_MILLISECONDS)
        expect(marks).to_contain_text("recovery", timeout=WAIT_MILLISECONDS)
        # Another machine has its seat, and the curve goes on beyond where it was.
        again = run.await_step(1, epoch=2)
        await_step(page, run.await_step(max(before, again) + 10, epoch=2))
        assert run.find_host(seat) is not host
        expect(page.locator("figure circle title", has_text="failure").first).to_be_attached()
        recoveries = page.locator("dl > div").filter(has_text="Recoveries").locator("dd").first
        expect(recoveries).to_have_text(re.compile("[1-9]"))
        expect(page.locator("dl > div").filter(has_text="Same bits as one machine").locator("dd").first).to_have_text(
            "yes"
        )

        page.get_by_role("button", name="Stop").click()
        page.get_by_role("button", name="Stop the run").click()
        expect(page.get_by_text("stopped", exact=True).first).to_be_visible(timeout=WAIT_MILLISECONDS)
        assert run.get()["run"]["checkpoint_step"] > 0
