"""Columns of a table as inputs: fitted on the training rows, kept as plain data, applied without scikit-learn."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder

from dubio.data.columns import TableChunk, Target, joined, read_rows
from dubio.data.encoder import TableEncoder, fit_encoder
from dubio.data.examples import Examples
from dubio.data.files import DataError, TableWarning
from dubio.data.registry import load, load_test
from dubio.data.tables import read_table

TARGET = Target("kind", "classification", ("a", "b"))


def table(**columns: Any) -> TableChunk:
    """A table in memory with a target of two classes."""
    num_rows = len(next(iter(columns.values())))
    arrays = {name: np.array(cells, dtype=object) for name, cells in columns.items()}
    arrays["kind"] = np.array(["a", "b"] * num_rows, dtype=object)[:num_rows]
    return TableChunk(arrays, "table", np.arange(num_rows))


def part(examples: Examples | None) -> Examples:
    assert examples is not None
    return examples


def write(folder: Path, header: str, rows: list[str], name: str = "table.csv") -> Path:
    path = folder / name
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def random_table(seed: int, num_rows: int) -> dict[str, list[Any]]:
    """Columns of all kinds with gaps in some, as texts."""
    rng = np.random.default_rng(seed)

    def gaps(cells: list[str], share: float) -> list[str | None]:
        return [None if gap else cell for cell, gap in zip(cells, rng.random(num_rows) < share, strict=True)]

    days = rng.integers(15000, 20000, num_rows).astype("datetime64[D]")
    return {
        "age": gaps([str(age) for age in rng.integers(18, 90, num_rows)], 0.0),
        "income": gaps([f"{income:.2f}" for income in rng.normal(3e4, 1e4, num_rows)], 0.2),
        "member": gaps([("no", "yes")[member] for member in rng.integers(0, 2, num_rows)], 0.1),
        "since": gaps([str(day) for day in days], 0.1),
        "plan": gaps([("free", "gold", "silver")[plan] for plan in rng.integers(0, 3, num_rows)], 0.0),
        "city": gaps([f"city {int(city)}" for city in np.minimum(rng.exponential(9, num_rows), 60)], 0.05),
    }


def by_scikit_learn(train: dict[str, list[Any]], test: dict[str, list[Any]]) -> np.ndarray:
    """The same features by a ColumnTransformer, from numbers as a user would prepare them."""

    def prepared(columns: dict[str, list[Any]]) -> np.ndarray:
        dates = np.array([np.datetime64("NaT") if day is None else np.datetime64(day) for day in columns["since"]])
        days = dates.astype("datetime64[D]")
        gap = np.isnat(days)
        months = days.astype("datetime64[M]").astype(int) % 12 + 1.0
        weekdays = np.array([np.nan if np.isnat(day) else day.astype(object).weekday() for day in days])
        yes = [np.nan if cell is None else float(cell == "yes") for cell in columns["member"]]
        parts = [
            np.array([np.nan if cell is None else float(cell) for cell in columns["age"]]),
            np.array([np.nan if cell is None else float(cell) for cell in columns["income"]]),
            np.array(yes),
            np.where(gap, np.nan, days.astype(float)),
            np.where(gap, np.nan, months),
            weekdays,
            np.array(columns["plan"], dtype=object),
            np.array(columns["city"], dtype=object),
        ]
        return np.stack([np.asarray(part, dtype=object) for part in parts], axis=1)

    number = SimpleImputer(strategy="median", add_indicator=True)
    plain = SimpleImputer(strategy="median")
    texts = OneHotEncoder(max_categories=30, handle_unknown="infrequent_if_exist", sparse_output=False)
    transformer = ColumnTransformer(
        [(f"column {index}", number, [index]) for index in range(4)]
        + [("month", plain, [4]), ("weekday", plain, [5]), ("plan", texts, [6]), ("city", texts, [7])]
    )
    transformer.fit(prepared(train))
    return np.asarray(transformer.transform(prepared(test)), dtype=np.float32)


@pytest.mark.feature("A table of numbers, texts, dates and gaps becomes inputs by plain numbers kept with the run.")
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.filterwarnings("ignore:Found unknown categories:UserWarning")
def test_the_encoder_equals_a_column_transformer(seed: int) -> None:
    columns = random_table(seed, 500)
    train = {name: cells[:400] for name, cells in columns.items()}
    test = {name: cells[400:] for name, cells in columns.items()}
    test["plan"][0] = "platinum"
    test["age"][1] = None
    encoder = TableEncoder.from_json(fit_encoder(table(**train), TARGET).to_json())
    inputs, _, _ = encoder.encode(table(**test))
    expected = by_scikit_learn(train, test)
    assert inputs.shape == expected.shape == (100, len(encoder.feature_names))
    np.testing.assert_allclose(inputs.numpy(), expected, rtol=1e-6)


def test_an_encoder_is_applied_without_scikit_learn(tmp_path: Path) -> None:
    columns = random_table(0, 60)
    encoder = fit_encoder(table(**columns), TARGET)
    (tmp_path / "table.json").write_text(encoder.to_json())
    program = (
        "import sys; sys.modules['sklearn'] = None\n"
        "from pathlib import Path; from dubio.data import TableEncoder\n"
        f"encoder = TableEncoder.from_json(Path({str(tmp_path / 'table.json')!r}).read_text())\n"
        f"print(encoder.encode({ {name: cells[:9] for name, cells in columns.items()}!r}).inputs.shape)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"torch.Size([9, {len(encoder.feature_names)}])"


def test_features_have_the_names_of_their_columns() -> None:
    encoder = fit_encoder(
        table(
            size=["1", None, "3", "4"],
            since=["2026-01-31", "2026-02-28", "2026-03-01", "2025-01-01"],
            plan=["free", "gold", None, "gold"],
        ),
        TARGET,
    )
    assert encoder.feature_names == (
        *("size", "size is missing", "since", "since month", "since weekday", "plan=free", "plan=gold", "plan=missing"),
    )
    inputs = encoder.encode({"size": [7, None], "since": ["2026-11-18", None], "plan": ["gold", None]}).inputs
    assert inputs.tolist() == [
        [7.0, 0.0, 20775.0, 11.0, 2.0, 0.0, 1.0, 0.0],
        [3.0, 1.0, inputs[1, 2].item(), 1.5, 5.0, 0.0, 0.0, 1.0],
    ]


def test_columns_come_in_any_order_and_the_target_may_be_absent() -> None:
    encoder = fit_encoder(table(a=["1", "2", "3", "5"], b=["x", "y", "x", "y"]), TARGET)
    inputs, targets, remarks = encoder.encode({"b": ["y"], "a": [5]})
    assert inputs.tolist() == [[5.0, 0.0, 1.0]]
    assert targets is None
    assert not remarks
    assert encoder.encode({"kind": ["b"], "b": ["y"], "a": [5]}).targets.tolist() == [1]


def test_a_missing_column_is_named() -> None:
    encoder = fit_encoder(table(a=["1", "2", "3", "5"], b=["x", "y", "x", "y"]), TARGET)
    with pytest.raises(DataError, match="must have the columns a, b, it lacks b; it has a"):
        encoder.encode({"a": [1.0]})


def test_what_training_did_not_have_is_counted_over_chunks() -> None:
    encoder = fit_encoder(table(a=["1", "2", "3", "5"], b=["x", "y", "x", "y"]), TARGET)
    first = encoder.encode({"a": [1.0, None], "b": ["z", "w"], "c": [0, 0]})
    second = encoder.encode({"a": [1.0], "b": ["v"], "c": [0]})
    assert first.inputs.tolist() == [[1.0, 0.0, 0.0], [2.5, 0.0, 0.0]]
    assert first.remarks + second.remarks == {
        "the columns c are not in the training data and are ignored": 3,
        "column 'a' is empty, which it never was in training; it is replaced by its median": 1,
        "column 'b' has a text that did not occur in training; it is ignored": 3,
    }


def test_texts_that_name_rows_and_columns_of_one_value_are_dropped() -> None:
    columns = table(
        name=["Ann", "Bob", "Cay", "Dee"], one=["3"] * 4, word=["x"] * 4, gap=[None] * 4, size=["1", "2", "4", "5"]
    )
    encoder = fit_encoder(columns, TARGET)
    assert {column.name: column.reason for column in encoder.columns if column.kind == "dropped"} == {
        "name": "every text is different",
        "one": "one value only",
        "word": "one value only",
        "gap": "empty in every training row",
    }
    assert encoder.feature_names == ("size",)
    assert "left out: name (every text is different)" in encoder.summary()
    with pytest.raises(DataError, match="must have inputs besides the target 'kind', got none"):
        fit_encoder(table(name=["Ann", "Bob"]), TARGET)


@pytest.mark.parametrize("header", [",a,kind", "Unnamed: 0,a,kind", "__index_level_0__,a,kind"])
def test_row_numbers_that_pandas_writes_are_dropped(header: str, tmp_path: Path) -> None:
    path = write(tmp_path, header, [f"{row},{row % 3}.5,{'xy'[row // 4]}" for row in range(8)])
    encoder = part(read_table(path).train).encoder
    assert encoder is not None
    assert encoder.feature_names == ("a",)
    assert encoder.columns[0].reason == "row numbers of pandas"


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["2026-01-31", "2026-02-01"], [20484.0, 20485.0]),
        (["2026-01-31T12:00:00", "2026-02-01 00:00:00+02:00"], [20484.5, 20485 - 1 / 12]),
        (["2026/01/31", "2026/02/01"], [20484.0, 20485.0]),
        (["31.01.2026", "01.02.2026"], [20484.0, 20485.0]),
        (["31/01/2026", "01/02/2026"], [20484.0, 20485.0]),
        (["01/31/2026", "02/01/2026"], [20484.0, 20485.0]),
    ],
)
def test_dates_are_days_since_1970_however_they_are_written(cells: list[str], expected: list[float]) -> None:
    encoder = fit_encoder(table(day=cells), TARGET)
    assert encoder.columns[0].kind == "date"
    inputs = encoder.encode({"day": cells}).inputs
    np.testing.assert_allclose(inputs[:, 0], expected, rtol=1e-7)


def test_dates_that_may_be_read_two_ways_are_refused() -> None:
    with pytest.raises(DataError, match="day and month cannot be told apart, such as '03/04/2026'"):
        fit_encoder(table(day=["03/04/2026", "05/06/2026"]), TARGET)


@pytest.mark.parametrize("cells", [["1,234", "2,345"], ["$5", "$7.50"], ["7 %", "8 %"], ["1_000", "2"]])
def test_numbers_in_a_writing_that_is_not_read_are_no_texts(cells: list[str]) -> None:
    with pytest.raises(DataError, match=r"table, row 0, column 'a' must hold a number, got .* drop=\['a'\]"):
        fit_encoder(table(a=cells), TARGET)


def test_numbers_far_from_zero_keep_their_digits() -> None:
    seconds = [1_700_000_000 + second for second in range(8)]
    encoder = fit_encoder(table(at=[str(second) for second in seconds]), TARGET)
    inputs = encoder.encode({"at": seconds}).inputs[:, 0]
    assert (inputs[1:] - inputs[:-1]).tolist() == [1.0] * 7


def test_an_encoder_is_fitted_on_the_training_rows_alone(tmp_path: Path) -> None:
    rows = [f"{row},{'ab'[row % 2]}" for row in range(40)]
    splits = read_table(write(tmp_path, "a,kind", rows))
    encoder = part(splits.train).encoder
    assert encoder is not None
    median = part(splits.train).inputs.median().item()
    test_rows = [int(row) for row in part(splits.test).inputs[:, 0].tolist()]
    for row in test_rows:
        rows[row] = f"1e9,{'ab'[row % 2]}"
    changed = part(read_table(write(tmp_path, "a,kind", rows)).train).encoder
    assert changed == encoder
    assert encoder.columns[0].fill == pytest.approx(median, abs=1.0)


def test_the_same_file_read_again_has_the_same_encoder(tmp_path: Path) -> None:
    rows = [f"{row if row % 7 else ''},{'pqr'[row % 3]},{'ab'[row % 2]}" for row in range(40)]
    path = write(tmp_path, "a,letter,kind", rows)
    assert part(load(path).test).encoder == load_test(path).encoder
    assert part(load(path).test).fingerprint == load_test(path).fingerprint


def test_another_file_is_read_by_the_encoder_of_the_first(tmp_path: Path) -> None:
    first = part(
        read_table(write(tmp_path, "a,letter,kind", [f"{i},{'pqr'[i % 3]},{'ab'[i % 2]}" for i in range(40)])).train
    )
    other = write(tmp_path, "letter,kind,a", [f"q,b,{i if i else ''}" for i in range(40)], "other.csv")
    with pytest.warns(TableWarning, match=r"column 'a' is empty, which it never was in training; .* .1 of 40 rows.$"):
        test = load_test(other, encoder=first.encoder)
    assert test.encoder == first.encoder
    assert test.shape == first.shape
    assert test.inputs[:, 1:].tolist() == [[0.0, 1.0, 0.0]] * 10
    assert test.targets.tolist() == [1] * 10
    third = write(tmp_path, "a,letter,kind", ["1,p,c"] * 8, "third.csv")
    with pytest.raises(DataError, match=r"line 2, column 'kind' holds a class that training did not have, 'c'"):
        load_test(third, encoder=first.encoder)


def test_an_encoding_that_is_none_is_refused() -> None:
    encoder = fit_encoder(table(a=["1", "2", "3", "5"]), TARGET)
    assert TableEncoder.from_json(encoder.to_json()) == encoder
    for text in ("", "[]", "{}", '{"version": 2}', encoder.to_json().replace('"number"', '"other"')):
        with pytest.raises(DataError):
            TableEncoder.from_json(text)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("has_other", 10**12),  # as many features, which take memory without end
        ("has_indicator", "yes"),
        ("date_format", "%d"),
        ("fill", True),
        ("fill", 1e300),
        ("categories", ["b", "b"]),
        ("categories", "ab"),
        ("kind", "dropped"),  # the only input
    ],
)
def test_an_encoding_with_a_forged_field_is_refused(name: str, value: object) -> None:
    stored = json.loads(fit_encoder(table(a=["b", "c", "b", "c"]), TARGET).to_json())
    stored["columns"][0][name] = value
    with pytest.raises(DataError, match="encod"):
        TableEncoder.from_json(json.dumps(stored))


# reading in chunks


def test_a_file_is_read_in_chunks(tmp_path: Path) -> None:
    path = write(tmp_path, "a,b", [f"{row},x{row}" for row in range(25)])
    parquet.write_table(pa.table({"a": range(25), "b": [f"x{row}" for row in range(25)]}), tmp_path / "t.parquet")
    for file in (path, tmp_path / "t.parquet"):
        chunks = list(read_rows(file, chunk_rows=10))
        assert [len(chunk) for chunk in chunks] == [10, 10, 5]
        whole = joined(chunks)
        assert list(map(str, whole.columns["a"])) == list(map(str, range(25)))
        assert whole.columns["b"].tolist() == [f"x{row}" for row in range(25)]
    assert whole.place(7, "b") == f"{tmp_path / 't.parquet'}, row 7, column 'b'"
    assert next(read_rows(path)).place(7, "b") == f"{path}, line 9, column 'b'"


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
def test_the_delimiter_is_read_off_the_first_rows(mark: str, tmp_path: Path) -> None:
    path = write(tmp_path, mark.join(["a", "b", "kind"]), [mark.join(["1.5", f"{row}", "x"]) for row in range(5)])
    whole = joined(list(read_rows(path)))
    assert list(whole.columns) == ["a", "b", "kind"]
    assert whole.columns["b"].tolist() == ["0", "1", "2", "3", "4"]


def test_a_semicolon_file_may_have_decimal_commas(tmp_path: Path) -> None:
    path = write(tmp_path, "size;note;kind", ["1,5;a, b;x", "-2,25;a;y", "3;b;y", "4;b;x"])
    inputs, targets = (torch.cat([getattr(p, n) for p in (part(read_table(path).train), part(read_table(path).test))])
                       for n in ("inputs", "targets"))  # fmt: skip
    assert sorted(inputs[:, 0].tolist()) == [-2.25, 1.5, 3.0, 4.0]
    assert sorted(targets.tolist()) == [0, 0, 1, 1]


@pytest.mark.parametrize("cell", ["1.234,50", "1,234.50", "2.5"])
def test_commas_and_points_in_one_column_are_refused(cell: str, tmp_path: Path) -> None:
    path = write(tmp_path, "size;kind", ["1,5;x", f"{cell};y"])
    with pytest.raises(DataError, match=r"must write the numbers of column 'size' in one way, 1234\.5 or 1234,5"):
        read_table(path)


def test_a_delimiter_may_be_named(tmp_path: Path) -> None:
    path = write(tmp_path, "a:b", ["1:x", "2:y", "1:x", "2:y"])
    assert part(read_table(path, delimiter=":").train).classes == ("x", "y")
    with pytest.raises(
        DataError, match=r"line 3 must have 1 cells, .* separated by commas; if that is wrong, set delim"
    ):
        read_table(write(tmp_path, "a b", ["1 x", "2,y"]))
    with pytest.raises(DataError, match="a delimiter must be one character such as ';'"):
        read_table(path, delimiter="::")


def test_a_column_of_any_type_may_be_skipped(tmp_path: Path) -> None:
    columns = {"a": [[1], [2], [3], [4]], "b": [1.5, 2.5, 3.5, 4.5], "y": ["p", "q", "p", "q"]}
    parquet.write_table(pa.table(columns), tmp_path / "t.parquet")
    train = part(read_table(tmp_path / "t.parquet", drop=["a"]).train)
    assert train.encoder is not None
    assert train.encoder.dropped_names == ("a",)
    assert train.shape == (1,)


def test_parquet_and_csv_of_the_same_table_have_the_same_inputs(tmp_path: Path) -> None:
    columns = random_table(1, 80)
    kinds = [f"{row % 2} sort" for row in range(80)]
    rows = [",".join("" if cell is None else cell for cell in [*cells, kinds[i]])
            for i, cells in enumerate(zip(*columns.values(), strict=True))]  # fmt: skip
    path = write(tmp_path, ",".join([*columns, "kind"]), rows)
    dates = [None if day is None else np.datetime64(day).astype(object) for day in columns["since"]]
    typed = {
        "age": [int(cell) for cell in columns["age"]],
        "income": [None if cell is None else float(cell) for cell in columns["income"]],
        "member": [None if cell is None else cell == "yes" for cell in columns["member"]],
        "since": pa.array(dates, pa.date32()),
        "plan": columns["plan"],
        "city": pa.array(columns["city"]).dictionary_encode(),
        "kind": kinds,
    }
    parquet.write_table(pa.table(typed), tmp_path / "t.parquet")
    from_csv, from_parquet = part(read_table(path).test), part(read_table(tmp_path / "t.parquet").test)
    torch.testing.assert_close(from_csv.inputs, from_parquet.inputs)
    assert from_csv.encoder is not None
    assert from_csv.encoder.encode(next(read_rows(tmp_path / "t.parquet"))).inputs.shape[0] == 80
