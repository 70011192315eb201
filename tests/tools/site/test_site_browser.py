"""The site in a real Chromium, opened from ``file://``, without a network.

Needs Chromium with its driver (Debian: ``apt-get install chromium chromium-driver``) and axe-core (``npm install
axe-core`` here or globally, or ``AXE_CORE=/path/to/axe.min.js``). If something is missing, the skip reason names it.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from sentinel.recipes.affects import holds
from sentinel.recipes.catalog import Catalog
from sentinel.tools.site.building import build, write
from sentinel.tools.site.material import read

ROOT = Path(__file__).resolve().parents[3]

#: Representative pages: a leak with gradients and a history, a rejected row, no evidence of a fixed revision.
BUG = "bugs/roll/ROLL-AGGLOSS-TOKENMEAN-MASK.html"
PAGES = (
    "index.html",
    "coverage.html",
    "lifetimes.html",
    "dialects.html",
    BUG,
    "bugs/verl/VERL-REJECTED-ROW-GRPO.html",
    "bugs/slime/SLIME-OPSM-MIXED-ADVANTAGE-LEAK.html",
)


def _axe() -> Path | None:
    places = [Path(os.environ["AXE_CORE"])] if "AXE_CORE" in os.environ else []
    places.append(ROOT / "node_modules" / "axe-core" / "axe.min.js")
    if npm := shutil.which("npm"):
        said = subprocess.run([npm, "root", "--global"], capture_output=True, text=True, check=False)
        places.append(Path(said.stdout.strip() or "/nowhere") / "axe-core" / "axe.min.js")
    return next((place for place in places if place.is_file()), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    webdriver = pytest.importorskip(
        "selenium.webdriver", reason="selenium is not installed: the browser extra brings it"
    )
    binary = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("no Chromium with its chromedriver on the PATH (Debian: chromium and chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--window-size=1280,1000",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chromium = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    chromium.set_script_timeout(240)  # a busy machine must not fail a test
    yield chromium
    chromium.quit()


@pytest.fixture(scope="module")
def made(few_records: tuple[Path, Catalog]) -> Path:
    reports, catalog = few_records
    write(reports.parent / "site", build(read(reports, catalog)))
    return reports.parent / "site"


@pytest.fixture
def at(browser: Any, made: Path) -> Any:
    """Return a function that opens a page, and clears the console."""

    def go(address: str) -> Any:
        browser.get_log("browser")
        browser.get(f"{made.as_uri()}/{address}")
        browser.execute_async_script(  # on a busy machine, the driver may be faster than the page's script
            "const done = arguments[0]; if (document.readyState === 'complete') done();"
            "else addEventListener('load', () => done())"
        )
        return browser

    return go


def _media(browser: Any, **features: str) -> None:
    told = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": told})


def _shown(browser: Any) -> list[str]:
    return list(
        browser.execute_script(
            "return [...document.querySelectorAll('[data-bug]')].filter(r => r.offsetParent !== null)"
            ".map(r => r.querySelector('small').textContent.split(' · ').at(-1))"
        )
    )


def _choose(browser: Any, name: str, value: str) -> None:
    """Choose an option as a person does: set the value and send the event."""
    browser.execute_script(
        "const field = document.querySelector(`[name=${arguments[0]}]`); field.value = arguments[1];"
        "field.dispatchEvent(new Event('input', {bubbles: true}))",
        name,
        value,
    )


def test_pages_cause_no_console_messages_and_have_all_pictures(at):
    for page in PAGES:
        browser = at(page)
        assert browser.get_log("browser") == [], page
        assert browser.execute_script("return [...document.images].every(i => i.complete && i.naturalWidth > 0)"), page
        assert browser.execute_script("return document.documentElement.classList.contains('js')"), page


def test_filters_select_rows_and_are_stored_in_the_address(at):
    browser = at("index.html")
    assert len(_shown(browser)) == 3
    _choose(browser, "target", "verl")
    assert _shown(browser) == ["VERL-REJECTED-ROW-GRPO"]
    assert urlsplit(browser.current_url).query == "target=verl"
    _choose(browser, "target", "")
    _choose(browser, "q", "agg_loss token")
    assert _shown(browser) == ["ROLL-AGGLOSS-TOKENMEAN-MASK"]
    assert urlsplit(browser.current_url).query == "q=agg_loss+token"
    browser.refresh()
    assert _shown(browser) == ["ROLL-AGGLOSS-TOKENMEAN-MASK"]
    assert browser.find_element("css selector", "output").text == "1 of 3 bugs"
    browser.find_element("css selector", "button[type=reset]").click()
    browser.execute_async_script("setTimeout(arguments[0])")
    assert len(_shown(browser)) == 3
    assert urlsplit(browser.current_url).query == ""
    assert _shown(at("index.html?law=a_rejected_row_is_an_absent_row&target=verl")) == ["VERL-REJECTED-ROW-GRPO"]
    assert len(_shown(at("index.html?target=%3Cscript%3E&severity=nothing"))) == 3  # unknown choices are no choices


CONDITIONS = ["grpo", "true", "1", ["grpo", "rloo"], "set", "unset", "> 1", ">= 1", "< 1", "<= 0.5", "!= 1", "!= k1,k2"]
VALUES = [
    "grpo",
    "true",
    "false",
    "null",
    "",
    "1",
    "1.0",
    "0.00",
    "5e-1",
    "2",
    "k2",
    "a,grpo",
    "1, 2",
    "{…}",
    "-3",
    "x1",
]


def test_the_start_page_evaluates_conditions_like_audit(at):
    asked = [[condition, value] for condition in CONDITIONS for value in VALUES]
    said = at("index.html").execute_script("return arguments[0].map(([c, v]) => holds(c, v))", asked)
    assert said == [holds(condition, value) for condition, value in asked]


def test_the_start_page_compares_two_settings(at):
    ask = "return reach([{n: '< m'}, ''], settings(arguments[0]), false)"
    browser = at("index.html")
    said = [browser.execute_script(ask, text)["answer"] for text in ("n=1 m=1e1", "n=10 m=10", "n=10")]
    assert said == ["hits", "no", "only"]


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        (
            "ray job submit -- python3 -m a.main \\\n  algorithm.adv_estimator=grpo ++a.b='[x, y]' c=None",
            {"algorithm.adv_estimator": "grpo", "a.b": "x,y", "c": "null"},
        ),
        (
            "train.py --kl-loss-coef 0.00 --use-kl-loss --names a b --eps=\"1e-3\"",
            {"kl_loss_coef": "0.00", "use_kl_loss": "true", "names": "a,b", "eps": "1e-3"},
        ),
        (
            "algorithm:  # what\n  adv_estimator: grpo\n  kl: {coef: 0.1, on: True}\nnames:\n  - a\n  - b\nlast: ~",
            {"algorithm.adv_estimator": "grpo", "algorithm.kl.coef": "0.1", "algorithm.kl.on": "true", "names": "a,b",
             "last": "null"},
        ),
        ('{"a": {"b-c": [1, 2]}, "d": null}', {"a.b_c": "1,2", "d": "null"}),
    ],
)  # fmt: skip
def test_pasted_text_is_read_as_settings(at, text, settings):
    browser = at("index.html")
    assert browser.execute_script("return Object.fromEntries(settings(arguments[0]))", text) == settings


def test_the_page_answers_for_a_version_and_a_configuration(at):
    browser = at("index.html?target=verl")

    def headings() -> list[str]:
        return [item.text for item in browser.find_elements("css selector", ".bugs .heading")]

    assert [item.text for item in browser.find_elements("css selector", "[name=version] option")][:1] == ["any"]
    _choose(browser, "version", "0.9.1")
    assert urlsplit(browser.current_url).query == "target=verl&version=0.9.1"
    run = "algorithm.adv_estimator=grpo algorithm.rollout_correction.rollout_rs=seq_mean_k3"
    _choose(
        browser, "run", f"{run} algorithm.norm_adv_by_std_in_grpo=True algorithm.rollout_correction.bypass_mode=False"
    )
    assert headings() == ["Possibly triggered by your run (1)"]
    assert "only if a response is rejected as a whole" in browser.find_element("css selector", ".because").text
    _choose(browser, "run", f"{run.replace('grpo', 'gae')}")
    assert headings() == ["Not triggered by your settings (1)"]
    assert "because algorithm.adv_estimator=gae" in browser.find_element("css selector", ".because").text
    assert "run=" not in browser.current_url
    _choose(browser, "target", "")
    assert browser.find_element("css selector", "output").text.endswith(
        "choose a framework to evaluate the configuration"
    )


def test_titles_and_latest_verdicts_are_visible_on_a_phone(at, browser):
    size = {"width": 375, "height": 667, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        for page, places in (("index.html", (".bugs a", ".bugs .chip")), (BUG, ("h1", ".chips .chip"))):
            at(page)
            for place in places:
                box = browser.execute_script(
                    "return document.querySelector(arguments[0]).getBoundingClientRect().toJSON()", place
                )
                assert (box["left"] >= 0, box["right"] <= 375, box["bottom"] <= 667) == (True, True, True), (
                    page,
                    place,
                )
            assert "latest" in browser.find_element("css selector", places[1]).text
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_verdict_links_to_its_evidence_and_file(at):
    browser = at("index.html")
    browser.find_element("css selector", f"a[href='{BUG}#git-main']").click()
    assert browser.current_url.endswith(f"{BUG}#git-main")
    section = browser.find_element("css selector", "section:target")
    assert "reproduced" in section.text
    section.find_element("partial link text", "git-main.json").click()
    assert json.loads(browser.find_element("css selector", "pre").text)["bug_id"] == "ROLL-AGGLOSS-TOKENMEAN-MASK"


def test_copy_buttons_copy_the_text_next_to_them(at):
    browser = at(BUG)
    browser.execute_cdp_cmd(
        "Browser.grantPermissions", {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    )
    for details in browser.find_elements("css selector", "details"):
        browser.execute_script("arguments[0].open = true", details)
    recipe = (ROOT / "recipes" / "roll" / "ROLL-AGGLOSS-TOKENMEAN-MASK.yaml").read_text()
    wanted = {"command": "pytest recipes/roll/ROLL-AGGLOSS-TOKENMEAN-MASK.yaml::git:c09bc8b", "recipe": recipe}
    for name, text in wanted.items():
        button = browser.find_element("css selector", f"button[data-copy={name}]")
        browser.execute_script("arguments[0].focus()", button)
        button.send_keys("\ue007")  # Enter: no mouse is needed
        copied = browser.execute_async_script(
            "const done = arguments[0];"
            "const look = () => document.getElementById('said').textContent.endsWith('copied')"
            " ? navigator.clipboard.readText().then(done) : requestAnimationFrame(look); look()"
        )
        assert copied == text
        browser.execute_script("document.getElementById('said').textContent = ''")
    assert browser.get_log("browser") == []


@pytest.mark.parametrize(("scheme", "width"), [("light", 400), ("dark", 1280)])
def test_axe_finds_nothing(at, browser, scheme, width):
    axe = _axe()
    if axe is None:
        pytest.skip("no axe-core: npm install axe-core, or AXE_CORE=/path/to/axe.min.js")
    _media(browser, prefers_color_scheme=scheme, prefers_reduced_motion="reduce")
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        for page in PAGES:
            at(page)
            browser.execute_script("for (const d of document.querySelectorAll('details')) d.open = true")
            # All rows of a table are alike, and axe takes seconds for hundreds of cells.
            browser.execute_script(
                "for (const r of document.querySelectorAll('tr:nth-child(n+9), .bugs li:nth-child(n+9)')) r.remove()"
            )
            # Selenium's script belongs to the browser, like that of an extension, so the page's policy need not allow
            # it.
            browser.execute_script(axe.read_text(encoding="utf-8"))
            found = browser.execute_async_script(
                "axe.run(document, {preload: false}).then(arguments[arguments.length - 1])"
            )
            told = [(v["id"], [n["html"][:120] for n in v["nodes"][:3]]) for v in found["violations"]]
            assert told == [], (page, scheme)
            assert len(found["passes"]) > 15
            assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth"), (page, width)
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        _media(browser)


def test_a_hostile_page_runs_nothing(at, made):
    """Nothing on this page is escaped, so only the content security policy prevents scripts."""
    page = made / "hostile.html"
    head = (made / "index.html").read_text().partition("</head>")[0]
    page.write_text(
        f"{head}</head><body><script>window.hit = 1</script><img src=x onerror='window.hit = 2'>"
        "<a id=l href='javascript:window.hit=3'>x</a><p style='color: red' onclick='window.hit = 4'>y</p></body></html>"
    )
    browser = at("hostile.html")
    browser.find_element("css selector", "#l").click()
    browser.find_element("css selector", "p").click()
    assert browser.execute_script("return window.hit") is None
    assert len(browser.get_log("browser")) >= 3


def test_the_page_is_complete_without_scripts(browser, made):
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get(f"{made.as_uri()}/index.html?target=verl")
        assert not browser.find_element("css selector", "form.filters textarea").is_displayed()
        assert len([row for row in browser.find_elements("css selector", "[data-bug]") if row.is_displayed()]) == 3
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
