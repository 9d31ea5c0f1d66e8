"""The pages in a real browser. Each test also checks that no request left the machine and no script failed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("uvicorn")

import lightdp
from lightdp import planning
from lightdp._validate import rounded_up
from lightdp.runlog import LogWriter, RunLog
from support.audited_logs import a_plan, lines_of, some_rounds
from support.pages import Served, eventually, serving
from support.run_logs import logged, written

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Open = Callable[..., Any]

PHONE = {"viewport": {"width": 375, "height": 800}, "has_touch": True, "is_mobile": True}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("pages") / "logs"
    folder.mkdir()
    plan = a_plan()
    written(folder / "real.jsonl", lines_of(plan, some_rounds(plan, 8)))
    written(folder / "repair.jsonl", logged())
    written(folder / "exact.jsonl", logged("exact"))
    written(folder / "short.jsonl", logged("local", rounds=3))
    (folder / "repair.safetensors").write_bytes(b"weights")
    with serving(folder) as found:
        yield found


def asked(page: Any) -> dict[str, Any]:
    """The settings that the page's fields hold."""
    kinds = {"epsilon": float, "delta": float, "clip": float, "sampling_rate": float}
    texts = page.evaluate(
        "Object.fromEntries([...document.querySelectorAll('#form [name]')].map(x => [x.name, x.value]))"
    )
    words = {"unit", "adjacency", "calibration"}
    return {name: text if name in words else kinds.get(name, int)(text) for name, text in texts.items() if text != ""}


def settled(page: Any) -> None:
    page.wait_for_timeout(60)
    page.wait_for_selector("#answer[aria-busy=false]")


def shown(page: Any, name: str) -> str:
    return page.inner_text(f"#{name}")


def assert_planned(page: Any) -> None:
    """The numbers on the page, once it has the answer to its own query, are those of Python for its settings."""
    answered = (
        "document.getElementById('answer').dataset.query === location.search.slice(1)"
        " && document.getElementById('answer').ariaBusy === 'false'"
    )
    for _ in range(600):  # not wait_for_function, which the page's policy forbids
        if page.evaluate(answered):
            break
        page.wait_for_timeout(100)
    else:
        pytest.fail("the page has no answer to its query after a minute")
    plan = lightdp.plan(**asked(page))
    figures = {"sigma-u": plan.sigma_individual, "sigma-k": plan.sigma_pairwise, "std": plan.noise_in_mean() ** 0.5}
    for name, value in figures.items():
        assert float(shown(page, name).replace(",", "")) == pytest.approx(value, rel=1e-3), name
    assert shown(page, "mu") == rounded_up(plan.mu)
    assert shown(page, "epsilon-shown") == rounded_up(plan.epsilon())
    assert shown(page, "bits") == str(plan.wire_bits)
    assert float(shown(page, "multiplier").replace(",", "")) == pytest.approx(plan.noise_multiplier, rel=1e-3)


@pytest.mark.parametrize("name", ["clients", "epsilon", "rounds", "stragglers", "delta"])
def test_a_slider_that_is_moved_shows_the_number_that_python_gives(served: Served, open_page: Open, name: str) -> None:
    page = open_page(served)
    before = asked(page)
    slider = page.locator(f"#{name}-slider")
    box = slider.bounding_box()
    page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + box["height"] / 2, steps=8)
    page.mouse.up()
    settled(page)
    assert asked(page)[name] != before[name]
    assert_planned(page)


def test_the_link_of_the_page_holds_the_whole_request(served: Served, open_page: Open) -> None:
    page = open_page(served)
    page.fill("#clients", "31")
    page.fill("#population", "310")
    page.select_option("#unit", "client")
    page.wait_for_timeout(250)
    settled(page)
    assert_planned(page)
    mu, url, before = shown(page, "sigma-u"), page.url, asked(page)
    other = page.context.new_page()
    other.goto(url)
    other.wait_for_selector("#answer[aria-busy=false]")
    assert asked(other) == before
    assert shown(other, "sigma-u") == mu
    page.reload()
    page.wait_for_selector("#answer[aria-busy=false]")
    assert asked(page) == before


def test_a_link_that_names_some_settings_leaves_the_others_as_they_start(served: Served, open_page: Open) -> None:
    page = open_page(served)
    start = asked(page)
    page.goto(served.link.replace("?", "?clients=5&colluders=7&"))
    page.wait_for_selector("#colluders[aria-invalid=true]")
    assert shown(page, "colluders-error").startswith("colluders must be in 0..4, got colluders=7")
    assert asked(page) == start | {"clients": 5, "colluders": 7}
    page.fill("#colluders", "1")
    page.fill("#stragglers", "1")
    page.fill("#parameters", "")
    page.wait_for_timeout(250)
    assert_planned(page)
    page.reload()
    assert_planned(page)
    assert "parameters" not in asked(page)


def test_the_comparison_shows_the_variances_that_lightdp_plan_prints(served: Served, open_page: Open) -> None:
    page = open_page(served)
    page.wait_for_selector("#schemes tbody tr")
    rows = planning.compare(lightdp.plan(**asked(page)))
    cells = page.evaluate(
        "[...document.querySelectorAll('#schemes tbody tr')].map(x => [...x.cells].map(y => y.innerText))"
    )
    bars = page.evaluate("[...document.querySelectorAll('#schemes-chart rect')].map(x => +x.getAttribute('width'))")
    noise = [row.noise_in_mean for row in rows if row.noise_in_mean is not None]
    assert [title for title, *_ in cells] == [row.title for row in rows]
    for (_, variance, ratio, *_), own, bar in zip(cells, noise, bars, strict=True):
        assert float(variance.replace(",", "")) == pytest.approx(own, rel=1e-3)
        assert float(ratio.replace(",", "")) == pytest.approx(own / noise[0], rel=1e-2)
        assert bar == pytest.approx(max(2, max(bars) * own / max(noise)), rel=1e-3)


def test_an_error_stands_beside_its_field_and_goes_again(served: Served, open_page: Open) -> None:
    page = open_page(served)
    page.fill("#delta", "2")
    eventually(lambda: shown(page, "delta-error") == "delta must be in (0, 1), got delta=2")
    assert page.get_attribute("#delta", "aria-invalid") == "true"
    page.fill("#delta", "1e-6")
    eventually(lambda: shown(page, "delta-error") == "")
    settled(page)
    assert_planned(page)


def test_after_a_refusal_the_old_answers_are_dimmed_and_cannot_be_copied(served: Served, open_page: Open) -> None:
    page = open_page(served)
    page.fill("#sampling_rate", "0.1")
    page.wait_for_timeout(250)
    assert_planned(page)
    assert (shown(page, "stale"), page.is_disabled("#copy")) == ("", False)
    assert shown(page, "sampled") == "It holds for a server that follows the protocol: batches are sampled (R2)."
    opacity = "+getComputedStyle(document.querySelector('#answer .cards')).opacity"
    page.select_option("#unit", "client")
    page.wait_for_selector("#answer.stale[aria-busy=false]")
    assert page.evaluate(opacity) < 0.5
    assert shown(page, "stale") == "There is no plan for these settings. What is shown below is for earlier ones."
    assert page.text_content("#brief") == "no plan for these settings"
    page.click("[data-copy=python]")
    assert page.is_disabled("#copy")
    page.fill("#sampling_rate", "1")
    page.wait_for_timeout(250)
    assert_planned(page)
    assert (page.evaluate(opacity), shown(page, "stale"), page.is_disabled("#copy")) == (1, "", False)
    assert (shown(page, "unit-shown"), shown(page, "sampled")) == ("all data of one client", "")


def test_a_link_without_a_plan_has_nothing_to_copy(served: Served, open_page: Open) -> None:
    page = open_page(served)
    page.goto(served.link.replace("?", "?clients=5&colluders=7&"))
    page.wait_for_selector("#colluders[aria-invalid=true]")
    assert (shown(page, "mu"), shown(page, "stale"), page.is_disabled("#copy")) == ("–", "", True)


def test_the_measured_model_of_the_nearest_sampling_rate_is_open_until_one_is_chosen(
    served: Served, open_page: Open
) -> None:
    page = open_page(served)

    def opened_at(rate: str) -> str:
        page.fill("#sampling_rate", rate)
        page.wait_for_timeout(250)
        assert_planned(page)
        return page.inner_text("#models [aria-pressed=true]")

    assert [opened_at(rate) for rate in ("1", "0.2", "0.1")] == ["scattering-linear", "scattering-cnn", "wrn-16-4"]
    assert "sampling rate 0.08, unit record" in shown(page, "measured-words")
    page.click("#models button:text-is('scattering-cnn')")
    assert opened_at("1") == "scattering-cnn"


def test_stale_answers_are_dropped(served: Served, open_page: Open) -> None:
    page = open_page(served)
    slow = [True]

    def late(route: Any) -> None:
        if slow and "clients=77&" in route.request.url:
            slow.clear()
            time.sleep(0.4)
        route.continue_()

    page.route("**/api/plan?*", late)
    page.fill("#clients", "77")
    page.wait_for_timeout(250)
    page.fill("#clients", "78")
    page.wait_for_timeout(900)
    settled(page)
    assert asked(page)["clients"] == 78
    assert_planned(page)


def test_what_is_copied_is_the_text_of_python(served: Served, open_page: Open) -> None:
    page = open_page(served, permissions=["clipboard-read", "clipboard-write"])
    for kind, begins in (
        ("command", "lightdp plan --clients 50"),
        ("python", "import lightdp"),
        ("flower", "from flwr"),
    ):
        page.click(f"[data-copy={kind}]")
        page.click("#copy")
        eventually(lambda: shown(page, "copied") == "copied")
        text = page.evaluate("navigator.clipboard.readText()")
        assert text.startswith(begins)
        assert text.strip() == page.text_content("#text").strip()


@pytest.mark.parametrize(
    "path", ["/plan", "/runs", "/runs/view?run=real.jsonl", "/runs/view?run=repair.jsonl&run=exact.jsonl"]
)
def test_no_page_is_wider_than_a_phone(served: Served, open_page: Open, path: str) -> None:
    page = open_page(served, path, **PHONE)
    page.wait_for_selector("#answer[aria-busy=false], .runs li, #charts figure")
    page.wait_for_timeout(300)
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    cut = page.evaluate(
        "[...document.querySelectorAll('.card .big')].filter(x => x.scrollWidth > x.clientWidth + 1).length"
    )
    assert cut == 0


def luminance(page: Any, selector: str, what: str) -> float:
    text = page.evaluate(f"getComputedStyle(document.querySelector({json.dumps(selector)})).{what}")
    channels = [int(x) / 255 for x in text[text.index("(") + 1 : -1].split(",")[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_light_and_dark(served: Served, open_page: Open, scheme: str) -> None:
    page = open_page(served, color_scheme=scheme)
    grounds = {".card .big": ".card", ".note": "body", ".card p:last-of-type": ".card"}
    same = ("#text", ".bar a[aria-current]", "button.primary")
    for text, ground in (grounds | {each: each for each in same}).items():
        one, other = luminance(page, text, "color"), luminance(page, ground, "backgroundColor")
        assert (max(one, other) + 0.05) / (min(one, other) + 0.05) >= 4.5, (text, ground)
    assert (luminance(page, "body", "backgroundColor") < 0.1) == (scheme == "dark")


def test_everything_can_be_done_with_the_keyboard_alone(served: Served, open_page: Open) -> None:
    page = open_page(served)
    page.wait_for_selector("#schemes tbody tr")
    page.evaluate("document.activeElement.blur()")
    reached = []
    for _ in range(70):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate(
                "document.activeElement.id || document.activeElement.dataset.copy || document.activeElement.textContent"
            )
        )
        ring = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert ring != "none" or reached[-1] in ("", None), reached[-1]
        if reached[-1] == "copy":
            break
    order = [
        "clients-slider",
        "clients",
        "colluders-slider",
        "epsilon",
        "unit",
        "calibration",
        "command",
        "flower",
        "copy",
    ]
    assert [each for each in reached if each in order] == order
    page.focus("#epsilon-slider")
    for _ in range(30):
        page.keyboard.press("ArrowRight")
    page.wait_for_timeout(100)
    settled(page)
    assert asked(page)["epsilon"] > 3
    assert_planned(page)
    page.keyboard.press("Tab")
    page.keyboard.press("Control+a")
    page.keyboard.type("1.5")
    page.wait_for_timeout(250)
    settled(page)
    assert asked(page)["epsilon"] == 1.5
    assert_planned(page)


def test_every_control_has_a_name(served: Served, open_page: Open) -> None:
    for path in ("/plan", "/runs", "/runs/view?run=real.jsonl"):
        page = open_page(served, path)
        page.wait_for_selector("#answer[aria-busy=false], .runs li, #charts figure")
        nameless = page.evaluate(
            "[...document.querySelectorAll('input, select, button, a, svg[role=img]')].filter(x => !("
            "x.getAttribute('aria-label') || x.textContent.trim() || (x.labels && x.labels.length)"
            ")).map(x => x.outerHTML.slice(0, 99))"
        )
        assert nameless == []
        assert page.evaluate("new Set([...document.querySelectorAll('[id]')].map(x => x.id)).size") == page.evaluate(
            "document.querySelectorAll('[id]').length"
        )


def test_runs_are_listed_compared_downloaded_and_audited(served: Served, open_page: Open) -> None:
    page = open_page(served, "/runs")
    page.wait_for_selector(".runs li")
    assert page.locator(".runs li").count() == 4
    for name in ("repair.jsonl", "exact.jsonl"):
        page.check(f"[aria-label='select {name}']")
    page.click("#compare")
    page.wait_for_selector("#charts figure")
    assert page.locator("#heads h2").all_inner_texts() == ["repair.jsonl", "exact.jsonl"]
    assert page.locator("#charts figure:first-child .line").count() == 2
    page.goto(served.base + "/runs/view?run=repair.jsonl")
    page.wait_for_selector("text=Model")
    with page.expect_download() as got:
        page.click("a:text-is('CSV')")
    assert got.value.suggested_filename == "repair.csv"
    with page.expect_download() as got:
        page.click("a:text-is('Model')")
    assert got.value.suggested_filename == "repair.safetensors"
    page.goto(served.base + "/runs/view?run=real.jsonl")
    page.click("[data-audit]")
    page.wait_for_selector("[data-audited]", timeout=60_000)
    assert "holds: what the log says of privacy follows from its rounds" in page.inner_text("[data-audited]").lower()


def test_the_report_of_a_run_is_drawn(served: Served, open_page: Open) -> None:
    page = open_page(served, "/runs/report?run=repair.jsonl")
    page.wait_for_selector(".chart svg", timeout=60_000)


def card(page: Any, name: str) -> str:
    return page.locator(f".card:has(h3:text-is('{name}')) .big").inner_text()


def is_at(page: Any, place: int) -> bool:
    return card(page, "Round").split(" /")[0] == str(place)


def test_a_log_is_followed_while_it_is_written(tmp_path: Path, open_page: Open) -> None:
    log, folder = RunLog.read(written(tmp_path / "whole.jsonl", logged(rounds=5))), tmp_path / "logs"
    folder.mkdir()
    with serving(folder) as served:
        page = open_page(served, "/runs/view?run=new.jsonl")
        page.wait_for_selector("text=waiting for the log")
        with LogWriter(folder / "new.jsonl") as writer:
            writer.write(log.started)
            page.wait_for_selector(".state.running")
            for line in log.rounds:
                writer.write(line)
                eventually(partial(is_at, page, line.round))
                assert line.epsilon is not None
                assert card(page, "Privacy spent") == f"ε = {rounded_up(line.epsilon)}"
            writer.write(log.outcome)
        page.wait_for_selector(".state.finished")
        end = log.outcome
        assert end.accuracy is not None
        assert end.epsilon is not None
        assert card(page, "Accuracy") == f"{100 * end.accuracy:.1f} %"
        assert card(page, "Privacy spent") == f"ε = {rounded_up(end.epsilon)}"


def test_the_page_ends_as_a_real_run_does(tmp_path: Path, open_page: Open) -> None:
    pytest.importorskip("torch")
    folder = tmp_path / "logs"
    folder.mkdir()
    words = ["run", "--rounds", "12", "--epsilon", "8", "--no-report", "--evaluate-every", "1", "--out"]
    with serving(folder) as served:
        page = open_page(served, "/runs/view?run=new.jsonl")
        page.wait_for_selector("text=waiting for the log")
        command = [sys.executable, "-m", "lightdp", *words, str(folder / "new.jsonl")]
        subprocess.run(command, capture_output=True, check=True, timeout=300)
        page.wait_for_selector(".state.finished")
        end = json.loads((folder / "new.jsonl").read_text().splitlines()[-1])
        assert card(page, "Round") == f"{end['rounds']} / 12"
        assert card(page, "Accuracy") == f"{100 * end['accuracy']:.1f} %"
        assert card(page, "Privacy spent") == f"ε = {rounded_up(end['epsilon'])}"


def test_a_new_round_keeps_the_focus_and_the_place_in_a_chart(tmp_path: Path, open_page: Open) -> None:
    folder, lines = tmp_path / "logs", logged(rounds=30)
    folder.mkdir()
    path = written(folder / "a.jsonl", lines[:11])
    with serving(folder) as served:
        page = open_page(served, "/runs/view?run=a.jsonl")
        page.wait_for_selector("#charts figure:nth-of-type(2) .line")
        for place, line in enumerate(lines[11:16], 11):
            if place == 13:
                page.focus("#charts figure:nth-of-type(2) svg")
                page.keyboard.press("Home")
            elif place < 13:
                page.focus("a:text-is('CSV')" if place == 11 else "[data-audit]")
                page.evaluate("window.focused = document.activeElement")
            with path.open("a") as file:
                file.write(json.dumps(line) + "\n")
            eventually(partial(is_at, page, place))
            if place < 13:
                assert page.evaluate("window.focused === document.activeElement && window.focused.isConnected")
            else:
                assert page.evaluate("document.activeElement.closest('figure:nth-of-type(2)') !== null")
                assert page.inner_text("#charts figure:nth-of-type(2) .readout").startswith("round 1:")


def test_figures_of_a_finished_run_agree_with_each_other(served: Served, open_page: Open) -> None:
    page = open_page(served, "/runs/view?run=repair.jsonl")
    page.wait_for_selector("#charts figure")
    cards = page.inner_text("#heads")
    assert "62.2 %" in cards
    assert "of the final model, on the test set; loss 0.286 at round 7" in cards
    assert "took 12.3 s" in cards
    assert "until repaired" not in cards
    assert page.inner_text("#charts figure:first-child .readout") == "round 6: 51.60 %"
    assert page.locator("figure:has(h3:text-is('Uploads')) .legend li").all_inner_texts() == [
        "on time",
        "too late",
        "lost",
    ]
    budget = re.search(r"of (\S+) in the budget", cards)
    assert budget is not None
    assert f"budget {budget[1]}" in page.inner_text("#charts figure:nth-of-type(4)")
    page.goto(served.base + "/runs/view?run=repair.jsonl&run=exact.jsonl")
    page.wait_for_selector("#charts figure")
    assert (
        page.inner_text("#charts figure:first-child .readout") == "round 6: repair.jsonl 51.60 % · exact.jsonl 52.60 %"
    )


def test_uploads_in_void_rounds_are_not_called_too_late(served: Served, open_page: Open) -> None:
    page = open_page(served, "/runs/view?run=real.jsonl")
    page.wait_for_selector("#charts figure")
    words = page.locator(".card:has(h3:text-is('Uploads')) p").last.inner_text()
    log = RunLog.read(served.folder / "real.jsonl")
    late, void, lost = (sum(log.fates(line)[kind] for line in log.rounds) for kind in ("late", "void", "lost"))
    assert void > 0
    assert words.startswith(f"used; {late} too late, {void} in void rounds, {lost} lost of ")


def test_noise_that_falls_to_zero_in_a_void_round_is_explained(served: Served, open_page: Open) -> None:
    stays, goes = "Noise that stays, std", "Residual until repaired, std"
    for run, words in {"real": "; 0 in 1 round that added no upload to the mean", "repair": ""}.items():
        page = open_page(served, f"/runs/view?run={run}.jsonl")
        page.wait_for_selector("#charts figure")
        notes = {title: page.inner_text(f"figure:has(h3:text-is('{title}')) h3 + p") for title in (stays, goes)}
        assert notes[stays] == f"in a coordinate of the mean, for good{words}"
        assert "0 where all came or no upload was used" in notes[goes]


DRAWN = """async ([lines, rules]) => {
  const script = document.querySelector("script[type=module]").src.replace(/[^/]*$/, "ui.js");
  const {chart, make} = await import(script), node = make("div");
  document.body.append(node);
  const named = chart(node, {lines, rules, from: 1, show: String, label: "a"});
  const boxes = [...node.querySelectorAll(".end")].map((each) => {
    const box = each.getBoundingClientRect();
    return [each.textContent, box.left, box.right, box.top, box.bottom];
  });
  const dots = [...node.querySelectorAll("circle")].map((each) => {
    const box = each.getBoundingClientRect();
    return [box.right, (box.top + box.bottom) / 2];
  });
  const {right} = node.getBoundingClientRect();
  node.remove();
  return [named, boxes, dots, right];
}"""


def rising(name: str, to: float, rounds: int = 60) -> dict[str, Any]:
    return {"name": name, "colour": "teal", "points": [[x, to * x / 60] for x in range(1, rounds + 1)]}


@pytest.mark.parametrize("width", [1280, 375])
@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ([rising("one", 1)], False),  # its title names it
        ([rising("one", 1), rising("two", 2), rising("three", 3), rising("four", 4)], True),
        ([rising("one", 1), rising("two", 1.01), rising("short", 1, rounds=12)], True),
        ([rising(str(name), 1) for name in range(5)], False),  # names would stand far from their lines
        ([rising(str(name), name) for name in range(1, 8)], False),
        ([rising("one", 1), rising("a name that is far too long for any chart, " * 3, 2)], False),
    ],
    ids=["one", "four", "near", "same", "many", "long"],
)
def test_few_lines_are_named_at_their_ends_where_there_is_room(
    served: Served, open_page: Open, lines: list[dict[str, Any]], named: bool, width: int
) -> None:
    page = open_page(served, viewport={"width": width, "height": 800})
    found, boxes, dots, right = page.evaluate(DRAWN, [lines, [{"y": 0.2, "text": "budget"}]])
    assert found is named
    assert sorted(text for text, *_ in boxes) == (sorted(line["name"] for line in lines) if named else [])
    ends = {line["name"]: dot for line, dot in zip(lines, dots, strict=True)}
    for place, (text, start, end, top, bottom) in enumerate(boxes):
        assert 0 < start - ends[text][0] < 10
        assert abs((top + bottom) / 2 - ends[text][1]) < 30
        assert end <= right
        for _, *(left_of, right_of, above, below) in boxes[:place]:
            assert end <= left_of or right_of <= start or bottom <= above + 3 or below <= top + 3


def test_lines_of_runs_have_a_legend_only_where_they_are_not_named(served: Served, open_page: Open) -> None:
    page = open_page(served, "/runs/view?run=short.jsonl&run=exact.jsonl")
    page.wait_for_selector("#charts figure")
    for title in ("Test accuracy", "Privacy spent, ε", "Noise that stays, std"):
        names = page.locator(f"figure:has(h3:text-is('{title}')) .end").all_text_contents()
        assert sorted(names) == ["exact.jsonl", "short.jsonl"], title
        assert page.locator(f"figure:has(h3:text-is('{title}')) .legend li").count() == 0


def test_each_of_several_runs_is_read_at_its_own_last_round(served: Served, open_page: Open) -> None:
    page = open_page(served, "/runs/view?run=short.jsonl&run=exact.jsonl")
    page.wait_for_selector("#charts figure")
    readout = "#charts figure:nth-of-type(2) .readout"
    apart = "short.jsonl, round 3: 1.2400 · exact.jsonl, round 7: 2.8200"
    assert page.inner_text(readout) == apart
    page.focus("#charts figure:nth-of-type(2) svg")
    for key, text in {
        "Home": "round 1: short.jsonl 0.4400 · exact.jsonl 0.4200",
        "PageUp": apart,
        "ArrowLeft": "short.jsonl, round 3: 1.2400 · exact.jsonl, round 6: 2.4200",
    }.items():
        page.keyboard.press(key)
        assert page.inner_text(readout) == text


def test_a_chart_of_very_many_rounds_is_drawn_with_few_points_and_the_last(served: Served, open_page: Open) -> None:
    found = open_page(served).evaluate(
        """async () => {
          const script = document.querySelector("script[type=module]").src.replace(/[^/]*$/, "ui.js");
          const {chart, make} = await import(script), node = make("div"), readout = make("p");
          const points = Array.from({length: 300001}, (_, k) => [k + 1, k % 7]);
          document.body.append(node);
          chart(node, {lines: [{name: "a", colour: "red", points}], from: 1, show: String, label: "a", readout});
          return [node.querySelector(".line").getAttribute("d").split("L").length, readout.textContent];
        }"""
    )
    assert 900 < found[0] <= 1001
    assert found[1] == f"round 300,001: {300_000 % 7}"


def test_what_is_no_content_is_outside_of_main(served: Served, open_page: Open) -> None:
    page = open_page(served)
    assert page.evaluate("document.querySelectorAll('main').length") == 1
    assert page.evaluate("document.querySelectorAll('main :is(nav, header, footer)').length") == 0


def points(page: Any) -> int:
    """How many rounds the line of ε has."""
    return page.evaluate(
        "document.querySelector('#charts figure:nth-of-type(2) .line').getAttribute('d').split('L').length"
    )


def test_a_page_goes_on_after_the_server_is_restarted(tmp_path: Path, open_page: Open) -> None:
    folder, lines = tmp_path / "logs", logged(rounds=30)
    folder.mkdir()
    path = written(folder / "a.jsonl", lines[:11])
    with serving(folder) as served:
        page = open_page(served, "/runs/view?run=a.jsonl")
        page.wait_for_selector("#charts figure:nth-of-type(2) .line")
        eventually(lambda: points(page) == 10)
        page.evaluate("window.untouched = true")
        assert served.stop() == 0
        page.wait_for_selector("text=The server")
    with path.open("a") as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines[11:21]))
    with serving(folder, port=served.port):
        eventually(lambda: points(page) == 20)
        with path.open("a") as file:
            file.write("".join(json.dumps(line) + "\n" for line in lines[21:]))
        page.wait_for_selector(".state.finished")
        assert points(page) == 30
        assert page.evaluate("window.untouched")  # the same page, not a new one
