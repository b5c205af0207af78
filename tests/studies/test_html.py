"""HTML of reports: cells of tables."""

from coterie.studies import html


def test_long_names_wrap_at_their_dots_and_numbers_do_not():
    page = html.table(["variant", "score"], [["1 learner.learning_rate=0.001", "0.123"], ["a < b", "1.5"]])
    assert "<td>1 learner.<wbr>learning_<wbr>rate=<wbr>0.001" in page
    assert "<td>0.123" in page
    assert "<td>a &lt; b" in page


def test_options_and_numbers_with_hyphens_are_not_broken():
    page = html.table(
        [], [["command", "coterie train cartpole-ppo rate=1e-3,3e-4 a.long.setting.of.it=1e-3 --jobs 2 -m"]]
    )
    assert "<span class=whole>--jobs</span> 2 -m" in page
    assert "cartpole-ppo rate=1e-3,3e-4 a." in page  # short enough for one line
    assert "it=<wbr><span class=whole>1e-3</span>" in page
    assert ".whole { display: inline-block" in html.STYLE
