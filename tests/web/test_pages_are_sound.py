"""Every page, in light, in dark and on a phone: it loads without a fault, keeps nobody out, and does not jump."""

from __future__ import annotations

import pytest

from tests.support.web_stage import AXE, await_quiet, find_serious, list_pages, wait_until

PAGES = (
    "grid", "sign-in", "sign-up", "not-found", "jobs", "job", "submit", "nodes", "node", "market", "wallet",
    "networks", "run", "join", "keys", "operator",
)  # fmt: skip
SHIFT_MAX = 0.1
WATCH_SHIFTS = """
window.shifts = 0;
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shifts += entry.value;
}).observe({ type: "layout-shift", buffered: true });
"""


def test_the_list_of_pages_is_whole(stage) -> None:
    assert tuple(list_pages(stage)) == PAGES


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("look", ["light, then dark", "phone"])
def test_a_page_is_sound(stage, visitor, name: str, look: str) -> None:
    path, who = list_pages(stage)[name]
    window = visitor(who, phone=look == "phone")
    window.context.add_init_script(WATCH_SHIFTS)
    page = window.open(path)
    await_quiet(page)
    assert find_serious(page) == []
    assert page.evaluate("window.shifts") <= SHIFT_MAX
    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0, f"{wide} pixels stand out of the screen"
    if look != "phone":
        # Colours are all that changes, some of them not at once.
        page.emulate_media(color_scheme="dark")
        wait_until(page, "document.getAnimations().every((each) => !(each instanceof CSSTransition))")
        assert find_serious(page) == []


def test_control_what_keeps_people_out_is_found(stage, visitor) -> None:
    page = visitor().open("/sign-in/")
    await_quiet(page)
    page.evaluate("document.querySelector('label').remove()")
    assert any(fault.startswith("label") for fault in find_serious(page))


def test_axe_is_there_at_all() -> None:
    assert AXE.stat().st_size > 100_000


def test_a_page_can_be_walked_by_keyboard(stage, visitor) -> None:
    page = visitor(stage.people["Dana"]).open("/jobs/")
    await_quiet(page)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    page.keyboard.press("Enter")
    assert page.url.endswith("#main")


def test_the_choice_of_colours_is_kept(stage, visitor) -> None:
    window = visitor()
    page = window.open("/sign-in/")
    await_quiet(page)
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    before = page.evaluate(ground)
    page.get_by_role("button", name="Light or dark").click()
    after = page.evaluate(ground)
    assert after != before
    assert window.open("/market/").evaluate(ground) == after


def test_the_operators_room_is_not_there_for_others(stage, visitor) -> None:
    page = visitor(stage.people["Dana"]).open("/operator/")
    page.get_by_text("There is nothing here").wait_for()
    assert "Suspend" not in page.content()
