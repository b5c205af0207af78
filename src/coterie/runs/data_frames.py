"""Results as pandas data frames. pandas is optional and imported when it is needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coterie.core.types import CoterieError


def data_frame(rows: Sequence[dict[str, Any]]) -> Any:
    """A data frame with one row for each dict; an error that names the cure without pandas."""
    try:
        import pandas
    except ModuleNotFoundError:
        raise CoterieError("to_pandas needs pandas: pip install 'coterie[pandas]'") from None
    return pandas.DataFrame(list(rows))
