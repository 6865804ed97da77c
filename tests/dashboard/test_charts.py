"""Charts: their numbers, axes, legend, time range, common cursor and zoom."""

import json
from typing import Any

import pytest

from tests.support.chromium import Browser
from tests.support.dashboard import Page

pytestmark = pytest.mark.process
PLOTS = "[...document.querySelectorAll('.timechart')].map((place) => place.plot)"
SEEN = f"return {PLOTS}.map((plot) => [plot.scales.x.min, plot.scales.x.max])"


def run(browser: Browser, file: str, text: str, *values: Any) -> Any:
    """The value of ``text``, in which ``module`` is a file of the dashboard."""
    browser.script(
        f"""window.answer = null;
        const [file, values] = arguments;
        const work = async (module) => {{ {text} }};
        import(`${{location.origin}}/dashboard/${{file}}`)
          .then(work)
          .then((found) => (window.answer = JSON.stringify([found])));""",
        file,
        list(values),
    )
    [found] = json.loads(browser.until("return window.answer"))
    return found


def opened(page: Page, queue: str) -> Page:
    """The page of a queue whose charts are drawn with some samples."""
    page.api.publish(queue, *range(3))
    page.open(f"/queues/{queue}").live()
    page.browser.until(
        f"const plots = {PLOTS}; return plots.length === 3 && plots.every((plot) => plot?.data[0].length > 2)"
    )
    return page


# -- numbers -----------------------------------------------------------------------------------------------------------


def test_rates_of_queues_are_means_of_the_last_minute_as_those_of_topics(page: Page) -> None:
    page.open().live()
    text = """
        const history = new module.History();
        const totals = { acked: 0, failed: 0 };
        for (let second = 0; second <= 90; second += 1) {
          const row = { queue: "mail", ready: 0, delayed: 0, leased: 0, dead: 0, headAgeSec: null };
          history.add([{ ...row, totals: { ...totals, published: 10 * Math.min(second, 60) } }], second);
        }
        return [history.rate("mail", "published"), history.rate(null, "published")]"""
    assert run(page.browser, "history.js", text) == [5, 5], "300 messages in the last 60 s; none in the last 10 s"


def test_rates_on_the_page_are_those_of_status_also_of_a_queue_that_is_new(page: Page, queue: str) -> None:
    page.api.publish(queue, *range(60))
    page.open().live()
    page.find("a.queue-name", queue)
    text = """
        const { live } = module, rows = live.status.queues, row = live.row(values[0]);
        const sum = rows.reduce((all, { rates }) => all + rates.publishedPerSec, 0);
        return [live.rate(values[0], "published"), row.rates.publishedPerSec, live.rate(null, "published") - sum,
          live.history.rate(values[0], "published") || 0]"""
    shown, server, difference, samples = run(page.browser, "live.js", text, queue)
    assert shown == server > 0
    assert abs(difference) < 0.001
    assert samples == 0, "the page has not seen the queue grow"


def test_series_have_a_gap_where_the_server_did_not_run_and_no_rate_below_zero(page: Page) -> None:
    page.open().live()
    text = """
        const at = [0, 30, 60, 90, 900, 930], gauge = [1, 2, 3, 4, 5, 6];
        const totals = [0, 30, 60, 90, 15, 45];
        const found = module.series({ at, waiting: gauge, age: gauge, leased: gauge, dead: gauge, published: totals,
          acked: totals, failed: totals });
        return [found.at, found.waiting, found.in]"""
    at, waiting, rates = run(page.browser, "timeseries.js", text)
    assert at == [0, 30, 60, 90, 495, 900, 930]
    assert waiting == [1, 2, 3, 4, None, 5, 6]
    assert rates == [None, 1, 1, 1, None, 0, 1]


def test_bars_of_each_day_have_the_reasons_in_one_order_and_the_axis_has_whole_numbers(page: Page) -> None:
    page.open().live()
    days = [
        {"day": "2026-01-01", "total": 3, "byReason": {"TIMEOUT": 2, "POISON": 1}},
        {"day": "2026-01-03", "total": 61, "byReason": {"POISON": 60, "TIMEOUT": 1}},
    ]
    text = """const days = new module.Days();
        days.draw(values[0], "2026-01-20");
        const reasons = [...days.node.querySelectorAll("rect")].map((bar) => bar.dataset.reason);
        const texts = (part) => [...days.node.querySelectorAll(`.${part} span`)].map((node) => node.textContent);
        return [reasons, texts("days-counts"), texts("days-dates")]"""
    reasons, counts, dates = run(page.browser, "charts.js", text, days)
    assert reasons == ["POISON", "TIMEOUT", "POISON", "TIMEOUT"]
    assert counts == ["62", "31", "0"]
    assert dates == ["01-02", "01-05", "01-08", "01-11", "01-14", "01-17", "01-20"]


def test_axis_labels_are_as_wide_as_their_longest_text(page: Page, queue: str) -> None:
    opened(page, queue)
    text = """
        const group = { key: "test", help: { id: "x" }, isLong: false, press() {}, zoom() {} };
        const { brief } = await import(`${location.origin}/dashboard/format.js`);
        const chart = new module.TimeChart(group, { title: "Age", unit: "age", steps: "span",
          lines: [{ name: "", kind: "age", column: "age", format: values[0] ? () => "16.7 minutes, more" : brief }] });
        document.querySelector(".charts").append(chart.node);
        chart.draw({ at: [0, 500, 1000], age: [0, 500, 1000] }, 0, 1000);
        await new Promise((resolve) => setInterval(() => chart.plot && resolve(), 20));
        await new Promise(requestAnimationFrame);
        const { plot } = chart, { ctx } = plot;
        ctx.font = plot.axes[1].font[0];
        const texts = plot.axes[1]._values;
        const widest = Math.max(...texts.map((text) => ctx.measureText(text).width));
        return [texts, plot.bbox.left / devicePixelRatio - plot.axes[1].labelSize - widest / devicePixelRatio]"""
    for is_long in (False, True):
        texts, room = run(page.browser, "timechart.js", text, is_long)
        assert room > 0, f"{texts} are cut off by {-room} px"
    texts, _ = run(page.browser, "timechart.js", text, False)
    assert "16.7 min" not in texts, "ticks are at whole minutes"
    assert "10 min" in texts


# -- what a reader does ------------------------------------------------------------------------------------------------


def test_chart_cursor_is_common_to_all_charts_and_moves_with_the_arrow_keys(page: Page, queue: str) -> None:
    opened(page, queue)
    page.browser.script("document.querySelector('.timechart').focus()")
    page.browser.press("ArrowLeft")
    indexes = page.browser.script(f"return {PLOTS}.map((plot) => plot.cursor.idx)")
    assert indexes[0] is not None
    assert len(set(indexes)) == 1
    moments = page.browser.texts(".chart-moment")
    assert len(set(moments)) == 1, "each chart names the same moment"
    assert moments[0].count(":") == 2
    page.browser.until("return document.querySelector('.charts-part [role=status]').textContent.includes('Rates: in')")
    page.browser.press("Escape")
    page.browser.until(f"return {PLOTS}.every((plot) => plot.cursor.idx === null)")
    page.find(".chart-moment", "last minute")


def test_chart_zoom_by_dragging_and_by_keys_is_common_to_all_charts(page: Page, queue: str) -> None:
    opened(page, queue)
    [first, *_] = page.browser.script(SEEN)
    page.browser.drag(page.find(".timechart .u-over"), 0.25, 0.75)
    page.find("button", "Show the whole range")
    zoomed = page.browser.script(SEEN)
    assert zoomed[0] == zoomed[1] == zoomed[2]
    width = first[1] - first[0]
    assert zoomed[0][1] - zoomed[0][0] == pytest.approx(width / 2, rel=0.1)
    page.api.publish(queue, 4)
    page.count("ready", 4)
    assert page.browser.script(SEEN) == zoomed, "new numbers leave the zoom as it is"
    page.browser.script("document.querySelector('.timechart').focus()")
    page.browser.press("+")
    page.browser.until(
        f"const [plot] = {PLOTS}; return plot.scales.x.max - plot.scales.x.min < arguments[0]", width / 3
    )
    page.browser.press("0")
    page.gone("button", "Show the whole range")
    page.browser.until(f"const [plot] = {PLOTS}; return plot.scales.x.max - plot.scales.x.min >= arguments[0]", width)


def test_chart_range_of_a_week_is_asked_of_the_server_and_kept_in_the_address(page: Page, queue: str) -> None:
    opened(page, queue)
    page.click(".charts-part button", "week")
    page.find('.charts-part[data-drawn="week"]')
    assert "range=week" in page.browser.url
    page.browser.reload()
    page.live()
    page.find('.charts-part[data-drawn="week"] [aria-pressed="true"]', "week")
    page.browser.until(f"const plots = {PLOTS}; return plots.length === 3 && plots.every(Boolean)")
    seen = page.browser.script(SEEN)
    assert all(high - low >= 21_600 for low, high in seen)
    page.browser.until(f"return {PLOTS}[1].data[1].at(-1) === 3")


def test_charts_are_as_wide_as_their_place_after_the_window_was_resized(page: Page, queue: str) -> None:
    opened(page, queue)
    for width in (390, 1280):
        page.go("/consumers").find("h1", "Consumers")
        page.go(f"/queues/{queue}?range=day")
        page.browser.size(width, 900)
        page.browser.until(
            """const places = [...document.querySelectorAll(".timechart")];
            const fits = (place) => Math.abs(place.plot?.width - place.clientWidth) < 2;
            return places.length === 3 && places.every(fits)"""
        )


def test_chart_legend_turns_a_line_off(page: Page, queue: str) -> None:
    opened(page, queue)
    button = page.find(".chart button.legend", "in")
    button.click()
    assert button.attribute("aria-pressed") == "false"
    assert page.browser.script(f"return {PLOTS}[0].series[1].show") is False
    button.click()
    assert page.browser.script(f"return {PLOTS}[0].series[1].show") is True


def test_chart_colours_follow_the_theme(page: Page, queue: str) -> None:
    opened(page, queue)
    colour = f"return {PLOTS}[0].series[1].stroke({PLOTS}[0], 1)"
    light = page.browser.script(colour)
    page.browser.prefer("dark")
    page.browser.until(f"return ({colour.removeprefix('return ')}) !== arguments[0]", light)


def test_charts_keep_their_place_under_the_cursor_and_another_range_ends_the_zoom(page: Page, queue: str) -> None:
    opened(page, queue)
    tops = "return [...document.querySelectorAll('.timechart')].map((place) => place.getBoundingClientRect().top)"
    before = page.browser.script(tops)
    page.browser.script("document.querySelector('.timechart').focus()")
    page.browser.press("ArrowLeft")
    page.find(".chart-moment", ":")
    assert page.browser.script(tops) == before
    page.browser.press("+")
    page.find(".charts-part button", "Show the whole range")
    page.click("button[data-range=hour]")
    page.gone(".charts-part button", "Show the whole range")
    page.find(".chart-hint")


def test_overview_on_a_phone_has_queues_then_charts_then_facts_and_no_states_of_zero(page: Page, queue: str) -> None:
    page.api.publish(queue, 1)
    page.browser.size(390, 844)
    page.open().live()
    page.find("a.queue-name", queue)
    page.find(".facts dd")
    tops = page.browser.script(
        """return [".queues", ".charts-part", ".facts"]
        .map((place) => document.querySelector(place).getBoundingClientRect().top)"""
    )
    assert tops == sorted(tops)
    shown = page.browser.script(
        """const row = document.querySelector(`.queues tr:has([href="#/queues/${arguments[0]}"])`);
        const cells = [...row.querySelectorAll(".state")].filter((cell) => cell.checkVisibility());
        return cells.map((cell) => cell.dataset.state)""",
        queue,
    )
    assert shown == ["ready"]


def test_charts_come_after_the_messages_on_a_phone_and_before_them_on_a_wide_screen(page: Page, queue: str) -> None:
    opened(page, queue)
    order = """return document.querySelector(".charts-part").getBoundingClientRect().top
        < document.querySelector(".message-list").getBoundingClientRect().top"""
    assert page.browser.script(order) is True
    page.browser.size(390, 844)
    page.browser.until("return innerWidth === 390")
    assert page.browser.script(order) is False
    page.go("/").find("a.queue-name", queue)
    page.find('.charts-part[data-drawn="minutes"]')
    assert page.browser.script(order.replace(".message-list", "table.queues")) is False
