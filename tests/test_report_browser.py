"""The report in a real browser: no complaint, no request, curves drawn, nothing wider than a phone."""

import html as text
import json
import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from refsampler.conformance.reporting.html import html
from refsampler.conformance.reporting.stored import read_run
from tests.failing_run import EVIL

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium on this machine: nobody has looked at the page"
)

OWN_HOSTS = (".google.com", ".googleapis.com")
QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-extensions", "--disable-default-apps", "--enable-logging=stderr"),
)


@pytest.fixture(scope="module")
def page(failing, tmp_path_factory):
    pytest.importorskip("matplotlib", reason="the extra `report` is not installed")
    path: Path = tmp_path_factory.mktemp("browser") / "report.html"
    path.write_text(html(read_run(failing)), encoding="utf-8")
    return path


def browse(page, *options):
    """What chromium prints about a page, and its log."""
    assert CHROMIUM is not None
    profile = f"--user-data-dir={page.parent / 'profile'}"
    command = [CHROMIUM, *QUIET, profile, *options, page.as_uri()]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return ran.stdout, ran.stderr


def test_a_browser_shows_it_without_complaint_or_request(page, tmp_path):
    log, picture = tmp_path / "net.json", tmp_path / "page.png"
    _, said = browse(
        page, "--window-size=1400,2600", f"--screenshot={picture}", f"--log-net-log={log}"
    )
    assert "CONSOLE" not in said
    events = json.loads(log.read_text("utf-8"))["events"]
    hosts = {
        urlsplit(one["params"]["url"]).hostname for one in events if "url" in one.get("params", {})
    }
    # the browser looks for its own updates whatever page it shows
    assert not [host for host in hosts if host and not host.endswith(OWN_HOSTS)]
    assert picture.stat().st_size > 0


@pytest.mark.parametrize("width", [320, 1400])
def test_nothing_is_wider_than_the_screen(page, tmp_path, width):
    # a browser's own window is never that narrow; a frame is, and the page around it may measure
    inside = text.escape(re.sub(r"<meta http-equiv[^>]*>", "", page.read_text("utf-8")))
    around = tmp_path / "around.html"
    around.write_text(
        f"""<meta charset=utf-8><iframe width={width} height=900 srcdoc="{inside}"></iframe><script>
        const frame = document.querySelector('iframe');
        frame.onload = () => {{
          const root = frame.contentDocument.documentElement;
          document.title = [root.scrollWidth, root.clientWidth,
            frame.contentDocument.querySelectorAll('svg').length,
            frame.contentDocument.querySelectorAll('script').length,
            [...frame.contentDocument.querySelectorAll('svg path')].filter(curve =>
              curve.getBBox().width > 100 && getComputedStyle(curve).stroke == 'rgb(11, 92, 173)'
            ).length,
            frame.contentDocument.querySelector('h1').textContent].join(' ');
        }}</script>""",
        encoding="utf-8",
    )
    shown, _ = browse(around, "--dump-dom")
    measured = text.unescape(re.findall("<title>(.*?)</title>", shown, re.DOTALL)[0])
    scroll, client, plots, scripts, curves = (int(word) for word in measured.split()[:5])
    assert scroll <= client <= width
    assert plots >= 4
    assert curves >= 2
    assert scripts == 0
    assert EVIL in measured
