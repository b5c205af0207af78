"""HTML of reports: cells of tables."""

from coterie.studies import html


def test_long_names_wrap_at_their_dots_and_numbers_do_not():
    page = html.table(["variant", "score"], [["1 learner.learning_rate=0.001", "0.123"], ["a < b", "1.5"]])
    assert "<td>1 learner.<wbr>learning_<wbr>rate=<wbr>0.<wbr>001" in page
    assert "<td>0.123" in page
    assert "<td>a &lt; b" in page
