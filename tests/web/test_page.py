"""Pages in a real browser: they load, they draw, they are played by people and by policies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsing import PATIENCE, PHONE, WIDE, act_by, draw, observation, opened, picture, run, until

from fugu.envs import suite
from fugu.envs.contract import Buffers
from fugu.envs.native_env import NativeEnv

PICTURES = Path(__file__).parents[2] / ".cache" / "pages"  # to be looked at
Pages = Callable[[str], Path]


def paddle(page: Any) -> float:
    return float(observation(page).view(np.float32)[0])


def text(page: Any, name: str) -> str:
    found: str = page.inner_text(f"[data-{name}]")
    return found


def fastest(page: Any) -> None:
    page.locator("[data-speed]").fill("6")


def keep(page: Any, name: str) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=str(PICTURES / f"{name}.png"))


# ------------------------------------------------------------------ every environment


@pytest.mark.parametrize("name", suite.names())
def test_every_page_runs(name: str, gallery: Path, browser: Any) -> None:
    with opened(browser, gallery, name) as page:
        page.evaluate("fugu.view.play(false)")
        agents = page.locator(".agent")
        for i in range(agents.count()):
            if agents.nth(i).locator(".modes").is_visible():
                act_by(page, "Chance", i)
        page.locator("[data-step]").click()
        run(page, 199)
        assert text(page, "steps") == "200"
        assert len(np.unique(picture(page).reshape(-1, 3), axis=0)) > 4


def test_the_gallery_shows_all_and_leads_to_them_and_back(gallery: Path, browser: Any) -> None:
    with opened(browser, gallery) as page:
        cards = page.locator(".card")
        assert cards.count() == len(suite.names())
        for i in range(cards.count()):
            cards.nth(i).scroll_into_view_if_needed()
        until(page, "[...fugu.view.cards.values()].every(card => card.list)")
        page.evaluate("scrollTo(0, 0)")
        keep(page, "gallery")
        page.get_by_role("link", name="Pong").click()
        page.wait_for_selector(".player")
        assert page.title() == "Pong · fugu gallery"
        page.get_by_text("All environments").click()
        page.wait_for_selector(".gallery")
        assert page.title() == "fugu gallery"


# ------------------------------------------------------------------ people


def test_a_key_moves_the_paddle(gallery: Path, browser: Any) -> None:
    with opened(browser, gallery, "breakout") as page:
        before, seen = paddle(page), picture(page)
        page.keyboard.down("ArrowLeft")  # the game begins with it
        until(page, "fugu.view.game.steps >= 4")
        page.keyboard.up("ArrowLeft")
        left = paddle(page)
        assert left < before - 0.05
        assert (picture(page) != seen).any()
        page.keyboard.down("ArrowRight")
        until(page, "fugu.view.game.steps >= 16")
        page.keyboard.up("ArrowRight")
        assert paddle(page) > left + 0.05


def test_keys_are_left_to_what_has_the_focus(gallery: Path, browser: Any) -> None:
    with opened(browser, gallery, "tetris") as page:
        page.locator("[data-play]").click()
        page.locator("[data-play]").click()
        paused = text(page, "steps")
        page.keyboard.press("Space")  # drops a piece, and does not press the button
        assert page.locator("[data-play]").get_attribute("aria-label") == "Play"
        page.locator("[data-seed]").fill("12")
        page.keyboard.press("Enter")
        assert page.evaluate("Number(fugu.view.game.seed)") == 12
        assert text(page, "steps") <= paused


def test_a_game_that_waits_stands_still_until_a_key_is_pressed(gallery: Path, browser: Any) -> None:
    with opened(browser, gallery, "maze") as page:
        page.wait_for_timeout(500)
        assert text(page, "steps") == "0"
        for key in ("ArrowUp", "ArrowRight", "ArrowDown"):
            page.keyboard.press(key)
        draw(page)
        assert text(page, "steps") == "3"


def test_what_is_not_allowed_is_not_done(gallery: Path, browser: Any) -> None:
    with opened(browser, gallery, "masked") as page:
        mask = page.evaluate("[...fugu.view.game.module.mask(0, 0)]")
        names = "1234567890qwerty"
        page.keyboard.press(names[mask.index(0)])
        draw(page)
        assert text(page, "steps") == "0"
        page.keyboard.press(names[mask.index(1)])
        draw(page)
        assert text(page, "steps") == "1"


def test_cells_are_pointed_at(gallery: Path, browser: Any) -> None:
    with opened(browser, gallery, "minesweeper") as page:
        box = page.locator(".screen").bounding_box()
        x, y = 0.2 + 9.6 / 9 * 2.5, 1.4 + 9.6 / 9 * 4.5  # the third cell of the fifth row
        page.mouse.click(box["x"] + box["width"] * x / 10, box["y"] + box["height"] * y / 11.2)
        draw(page)
        assert text(page, "steps") == "1"
        closed = observation(page).reshape(9, 9) == 9
        assert not closed[4, 2]
        assert closed.sum() >= 10


def test_keys_are_touched_and_the_picture_is_dragged(gallery: Path, browser: Any) -> None:
    with opened(browser, gallery, "breakout", **PHONE) as page:
        middle = paddle(page)
        page.locator("[data-key=left]").tap()
        until(page, "fugu.view.game.steps >= 2")
        assert paddle(page) < middle
        before, session = paddle(page), page.context.new_cdp_session(page)
        box = page.locator(".screen").bounding_box()
        x, y = box["x"] + 100, box["y"] + box["height"] / 2
        for kind, shift in (("touchStart", 0), ("touchMove", 30), ("touchMove", 60)):
            points = [{"x": x + shift, "y": y}]
            session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
        held = page.evaluate("fugu.view.hands.held.join()")
        steps = page.evaluate("fugu.view.game.steps")
        until(page, f"fugu.view.game.steps >= {steps} + 3")
        session.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
        assert held == "right"
        assert paddle(page) > before
        assert page.evaluate("fugu.view.hands.held.length") == 0


# ------------------------------------------------------------------ time, seeds, copies


def test_a_seed_is_the_game_that_python_plays(gallery: Path, browser: Any) -> None:
    env = NativeEnv(suite.find("pong") or "")
    env.bind(*(Buffers.allocate(group) for group in env.groups))
    env.reset(123)
    with opened(browser, gallery, "pong") as page:
        page.locator("[data-seed]").fill("123")
        page.keyboard.press("Enter")
        assert observation(page).tobytes() == env.buffers[0].observations.tobytes()
        run(page, 100)
        for _ in range(100):
            env.buffers[0].actions[:] = 0
            env.step()
        assert observation(page).tobytes() == env.buffers[0].observations.tobytes()
        page.locator("[data-restart]").click()
        draw(page)
        assert text(page, "steps") == "0"
        page.locator("[data-any-seed]").click()
        env.reset(int(page.input_value("[data-seed]")))
        assert observation(page).tobytes() == env.buffers[0].observations.tobytes()


def test_it_pauses_goes_step_by_step_and_faster(gallery: Path, browser: Any) -> None:
    with opened(browser, gallery, "cartpole") as page:
        page.wait_for_timeout(300)
        assert text(page, "steps") == "0"  # it waits for its player
        page.locator("[data-step]").click()
        draw(page)
        assert text(page, "steps") == "1"
        page.wait_for_timeout(300)
        assert text(page, "steps") == "1"
        fastest(page)
        assert text(page, "rate").startswith("64")
        page.keyboard.press("Escape")  # means nothing
        page.locator("[data-play]").click()
        until(page, "fugu.view.game.steps > 1000")
        page.locator("[data-play]").click()
        assert int(text(page, "episodes")) > 5


def test_copies_are_played_side_by_side(page_of: Pages, browser: Any) -> None:
    with opened(browser, page_of("breakout")) as page:
        page.locator("[data-copies]").select_option("4")
        run(page, 60)
        assert page.locator(".screen canvas").count() == 4
        pictures = [picture(page, copy) for copy in range(4)]
        seen = [observation(page, copy).tobytes() for copy in range(4)]
        assert len(set(seen)) == 4
        assert all((pictures[0] != other).any() for other in pictures[1:])
        keep(page, "copies")
        act_by(page, "You")
        page.locator(".screen").nth(2).click()
        assert page.evaluate("fugu.view.game.chosen") == 2
        before = [observation(page, copy).view(np.float32)[0] for copy in range(4)]
        page.keyboard.down("ArrowLeft")
        run(page, 12)
        page.keyboard.up("ArrowLeft")
        after = [observation(page, copy).view(np.float32)[0] for copy in range(4)]
        assert after[2] < before[2] or after[2] == min(after)


def test_several_agents_have_their_own_hands(gallery: Path, browser: Any) -> None:
    with opened(browser, gallery, "multiagent") as page:
        assert page.locator(".agent").count() == 2
        assert page.locator(".pad").count() == 2
        act_by(page, "Chance", 0)
        assert page.locator(".pad").count() == 1
        page.keyboard.press("ArrowRight")
        draw(page)
        assert text(page, "steps") == "1"
        page.keyboard.press("a")  # of the agent that acts by chance
        draw(page)
        assert text(page, "steps") == "1"


# ------------------------------------------------------------------ policies


def test_the_policy_reaches_its_score_and_its_bars_move(page_of: Pages, browser: Any) -> None:
    with opened(browser, page_of("breakout")) as page:
        bars = "[...document.querySelectorAll('.bar i')].map(bar => bar.style.transform).join()"
        page.locator("[data-play]").click()
        seen = set()
        for _ in range(20):
            run(page, 5)
            seen.add((page.evaluate(bars), text(page, "number")))
        assert len({moved for moved, _ in seen}) > 10
        assert len({value for _, value in seen}) > 3
        best = np.argmax(page.evaluate("[...fugu.view.game.module.thought(0, 0).params]"))
        assert page.locator(".bar.taken .label").inner_text() == ["stay", "left", "right"][best]
        keep(page, "breakout")
        page.locator("[data-play]").click()
        fastest(page)
        until(page, "document.querySelector('[data-best]').textContent === '864'")
        keep(page, "best")


def test_bars_are_the_probabilities_of_the_policy(page_of: Pages, browser: Any) -> None:
    with opened(browser, page_of("breakout")) as page:
        page.locator("[data-play]").click()
        run(page, 30)
        params = np.array(page.evaluate("[...fugu.view.game.module.thought(0, 0).params]"))
        expected = np.exp(params - params.max()) / np.exp(params - params.max()).sum()
        shown = [int(word.strip("%")) for word in page.locator(".percent").all_inner_texts()]
        np.testing.assert_allclose(shown, 100 * expected, atol=0.51)
        assert page.locator(".label").all_inner_texts() == ["stay", "left", "right"]


def test_a_person_takes_over_from_the_policy_and_gives_back(page_of: Pages, browser: Any) -> None:
    with opened(browser, page_of("breakout")) as page:
        act_by(page, "You")
        page.locator("[data-play]").click()
        run(page, 1)
        still = paddle(page)
        run(page, 20)
        assert paddle(page) == still
        assert text(page, "number") != ""  # the policy looks on
        act_by(page, "Policy")
        run(page, 20)
        assert paddle(page) != still


def test_numbers_have_a_range_and_several_values_are_told(page_of: Pages, browser: Any) -> None:
    with opened(browser, page_of("pendulum"), color_scheme="dark", **WIDE) as page:
        run(page, 100)
        assert len(text(page, "number").split()) == 2
        mark = page.evaluate("document.querySelector('.range b').style.left")
        assert 0 <= float(mark.strip("%")) <= 100
        keep(page, "pendulum")


# ------------------------------------------------------------------ looks


@pytest.mark.parametrize("name", ["breakout", "snake", "mountain_car", "warehouse", "connect4"])
def test_the_canvas_shows_what_python_draws(name: str, gallery: Path, browser: Any) -> None:
    env = NativeEnv(suite.find(name) or "")
    env.bind(*(Buffers.allocate(group) for group in env.groups))
    env.reset(1)
    with opened(browser, gallery, name) as page:
        page.evaluate("fugu.view.begun = true; fugu.view.play(false)")
        draw(page)
        shown = picture(page).astype(float)
    height, width, _ = shown.shape
    drawn = env.render((width, height)).astype(float)
    difference = np.abs(shown - drawn).mean()
    assert difference < 4  # letters are of another font
    assert np.abs(shown - drawn[::-1]).mean() > 2 * difference


def test_light_and_dark(gallery: Path, browser: Any) -> None:
    grounds = []
    for scheme in ("light", "dark"):
        with opened(browser, gallery, "breakout", color_scheme=scheme, **WIDE) as page:
            found = page.evaluate("getComputedStyle(document.body).backgroundColor")
            grounds.append([int(part) for part in found.strip("rgb()").split(",")])
    assert min(grounds[0]) > 200
    assert max(grounds[1]) < 60


@pytest.mark.parametrize("width", [320, 390, 768])
def test_nothing_is_wider_than_a_small_screen(width: int, gallery: Path, browser: Any) -> None:
    options = PHONE | {"viewport": {"width": width, "height": 700}}
    with opened(browser, gallery, **options) as page:
        for name in ("", "list_dsl", "snake", "speaker_listener", "breakout"):
            page.evaluate("name => { location.hash = name; }", name)
            page.wait_for_selector(".player" if name else ".gallery")
            until(page, f"(fugu.view.spec?.name ?? '') === '{name}'")
            draw(page)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        keep(page, f"phone_{width}")


def test_everything_has_a_name_for_those_who_do_not_see_it(page_of: Pages, browser: Any) -> None:
    with opened(browser, page_of("breakout")) as page:
        act_by(page, "You")
        nameless = page.evaluate(
            """[...document.querySelectorAll("button, input, select, a, [tabindex], [role]")]
                .filter(node => !node.hidden && !(node.getAttribute("aria-label")
                    || node.textContent.trim() || node.labels?.[0]?.textContent.trim()))
                .filter(node => node.getAttribute("role") !== "status")
                .map(node => node.outerHTML)"""
        )
        assert nameless == []
        assert page.locator("[data-play]").get_attribute("aria-label") == "Pause"
        page.locator("[data-play]").focus()
        page.keyboard.press("Enter")
        assert page.locator("[data-play]").get_attribute("aria-label") == "Play"


def test_a_page_that_cannot_run_says_so(gallery: Path, browser: Any, tmp_path: Path) -> None:
    broken = tmp_path / "index.html"
    html = gallery.read_text().replace('"module":"AGFzbQ', '"module":"AAAAAA')
    broken.write_text(html)
    context = browser.new_context()
    page = context.new_page()
    page.goto(broken.as_uri() + "#breakout")
    page.wait_for_selector(".failure", timeout=PATIENCE)
    assert "WebAssembly" in page.inner_text(".failure")
    context.close()
