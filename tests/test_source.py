"""The file boundary: every way in which a text file can be wrong, and what is said about it."""

import math
import os
import stat
import time
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest
import yaml
from pydantic import Field

from planner.documents import yaml_text
from planner.documents.files import check_writable, read_text, write_text_atomic
from planner.documents.schema_base import Choice, DocumentModel, Reserved
from planner.documents.source import load_document, parse_document
from planner.documents.yaml_text import dump_yaml, parse_tree, plain_scalar
from planner.errors import SpecError
from planner.specs import Objective


class Item(DocumentModel):
    gpu: str
    price_per_gpu_hour: Annotated[float, Field(gt=0)] = 1.0
    max_gpus: int | None = None
    rdma: bool = True


class Sample(DocumentModel):
    empty_values = False
    synonyms: ClassVar = {"title": "name"}

    name: str = "x"
    rate: float = 1.0
    objective: Objective = Objective.COST
    mode: Annotated[str, Choice(("fast", "slow"), reserved=("warp",), aliases={"quick": "fast"})] = "fast"
    table: dict[int, float] = Field(default={})
    fleet: list[Item] = Field(default=[])
    pair: tuple[int, int] = (1, 2)
    zones: Annotated[Any, Reserved()] = None


def parse(text: str) -> Sample:
    return parse_document(text, "s.yaml", Sample).model


def problems(text: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        parse(text)
    assert caught.value.source == "s.yaml"
    assert str(caught.value).startswith(f"s.yaml: {len(caught.value.problems)} problem")
    return [str(problem) for problem in caught.value.problems]


# Scalars


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e3", 1000.0),
        ("1.5E-3", 0.0015),
        ("-7", -7),
        ("+7", 7),
        (".5", 0.5),
        ("6.", 6.0),
        ("010", "010"),
        ("12:30", "12:30"),
        ("0x10", "0x10"),
        ("1_000", "1_000"),
        ("2024-01-01", "2024-01-01"),
        ("yes", True),
        ("Off", False),
        ("~", None),
        ("", None),
        ("y", "y"),
        ("9" * 400, math.inf),
        ("-.inf", -math.inf),
    ],
)
def test_plain_scalars_follow_yaml_1_2(text, value):
    got = plain_scalar(text)
    assert got == value
    assert type(got) is type(value)


def test_not_a_number_is_read_as_one():
    assert math.isnan(plain_scalar(".nan"))


def test_exponent_without_point_is_a_number():
    assert parse("rate: 1e3").rate == 1000.0


def test_quoted_and_tagged_text_stays_text():
    assert parse("name: 'no'").name == "no"
    assert parse("name: !!str 12").name == "12"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rate: '20'", "line 1: rate: must be a number, got '20' (remove the quotes)"),
        ("rate: 12:30", "line 1: rate: must be a number, got '12:30' (some YAML readers take a colon"),
        ("rate: 010", "line 1: rate: must be a number, got '010' (leave out the leading zero"),
        ("rate: 1,000", "line 1: rate: must be a number, got '1,000' (write 1000)"),
        ("rate: 0x10", "line 1: rate: must be a number, got '0x10' (write it in decimal)"),
        ("rate: 80GB", "line 1: rate: must be a number, got '80GB' (write the number alone: the unit is"),
        ("rate: fast", "line 1: rate: must be a number, got 'fast'"),
        ("rate: true", "line 1: rate: must be a number, got true"),
        ("rate: .inf", "line 1: rate: must be a finite number, got .inf"),
        ("rate: .nan", "line 1: rate: must be a finite number, got .nan"),
        ("rate: 1e999", "line 1: rate: must be a finite number, got 1e999"),
        ("rate: {a: 1}", "line 1: rate: must be a number, got a mapping of keys"),
        ("rate:", "line 1: rate: has no value (give one, or leave the key out)"),
        ("name: no", "line 1: name: must be text, got no (put it in quotes if it is a name)"),
        ("name: 12", "line 1: name: must be text, got 12 (put it in quotes if it is a name)"),
        ("name: [a]", "line 1: name: must be text, got a list"),
        ("objective: cots", "objective: must be one of cost, gpus, power, throughput, got 'cots' (did you"),
        ("mode: sloww", "line 1: mode: must be one of fast, slow, got 'sloww' (did you mean slow?)"),
        ("mode: warp", "line 1: mode: is not supported by this version, got 'warp' (choose fast or slow)"),
        ("mode: 3", "line 1: mode: must be one of fast, slow, got 3"),
        ("pair: [1, 2, 3]", "line 1: pair: must have 2 or fewer entries, has 3, got a list"),
        ("fleet: a", "line 1: fleet: must be a list, got 'a'"),
        ("fleet: [a]", "line 1: fleet[0]: must be a mapping of keys, got 'a'"),
        ("fleet: [{}]", "line 1: fleet[0].gpu: is required"),
        ("fleet:\n- gpu: a\n  max_gpus: 1.5", "line 3: fleet[0].max_gpus: must be a whole number, got 1.5"),
        (
            "fleet:\n- gpu: a\n  max_gpus: 1e3",
            "must be a whole number, got 1e3 (write 1000)",
        ),
        ("fleet:\n- gpu: a\n  rdma: 1", "line 3: fleet[0].rdma: must be true or false, got 1"),
        ("fleet:\n- gpu: a\n  price_per_gpu_hour: -1", "fleet[0].price_per_gpu_hour: must be > 0, got -1"),
        ("zones: [a]", "line 1: zones: is reserved and not supported by this version, got a list"),
        ("table: {a: 1}", "line 1: table.a: "),
    ],
)
def test_wrong_values_are_refused_with_line_key_rule_and_value(text, message):
    (problem,) = problems(text)
    assert message in problem


def test_no_and_off_are_booleans_where_a_boolean_is_expected():
    assert parse("fleet: [{gpu: a, rdma: no}]").fleet[0].rdma is False


def test_a_part_of_a_file_names_whole_paths():
    tree, _ = parse_tree("name: x\nfleet:\n- gpu: a\n- gpu: b\n", "s.yaml")
    part = tree.within("fleet").within(1)
    assert (part.get("gpu"), part.has("name"), part.line(("gpu",))) == ("b", False, 4)
    assert str(part.problem(("gpu",), "is bad")) == "line 4: fleet[1].gpu: is bad, got 'b'"
    assert str(part.problem(("size",), "is required")) == "line 4: fleet[1].size: is required"
    assert part.whole.get("name") == "x"
    assert tree.within("nowhere", 3).get("gpu") is None


def test_keys_may_be_numbers_and_aliases_of_choices_are_translated():
    model = parse("table: {2: 1, 8: 1e3}\nmode: quick")
    assert model.table == {2: 1.0, 8: 1000.0}
    assert model.mode == "fast"


def test_long_values_are_shortened():
    (problem,) = problems(f"rate: {'x' * 500}")
    assert len(problem) < 120
    assert problem.endswith("...")


# Keys


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fleet:\n- gpu: a\n  max_gpu: 3", "line 3: fleet[0].max_gpu: unknown key (did you mean max_gpus?)"),
        ("fleet:\n- gpu: a\n  price_per_hour: 3", "(did you mean price_per_gpu_hour?)"),
        ("title: x", "line 1: title: unknown key (did you mean name?)"),
        ("zzz: 1", "line 1: zzz: unknown key (known keys: name, rate, objective, mode, table, fleet, pair)"),
        ("no: 1", "line 1: no: unknown key (known keys: "),
        ('"a\\nb": 1', "line 1: 'a\\nb': unknown key"),
    ],
)
def test_unknown_keys_are_refused_with_the_nearest(text, message):
    (problem,) = problems(text)
    assert message in problem


def test_duplicate_keys_are_refused_with_both_lines():
    assert problems("name: a\nrate: 1\nname: b") == ["line 3: name: duplicate key, first given on line 1"]


def test_all_problems_come_at_once_in_the_order_of_their_lines():
    found = problems("nmae: a\nrate: '1'\nrate: 2\nfleet:\n- {gpu: 1, max_gpus: x}\n- {}\nzones: 1")
    assert [problem.split(":")[0] for problem in found] == [
        "line 1",
        "line 2",
        "line 3",
        "line 5",
        "line 5",
        "line 6",
        "line 7",
    ]


# Anchors


def test_aliases_and_merge_keys_are_expanded():
    model = parse("fleet:\n- &a {gpu: x, max_gpus: 3}\n- {<<: *a, gpu: y}\n- *a")
    assert [(item.gpu, item.max_gpus) for item in model.fleet] == [("x", 3), ("y", 3), ("x", 3)]


def test_alias_bombs_are_refused_fast():
    levels = [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    start = time.process_time()
    (problem,) = problems("a0: &a0 [x]\n" + "\n".join(levels))
    assert "holds more than 100,000 values once its aliases are expanded" in problem
    assert time.process_time() - start < 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: &a [*a]", "line 1: alias *a lies within its own anchor"),
        ("rate: 1\nname: *b", "line 2: alias *b has no anchor before it"),
        (
            "name: !!python/object:os.system x",
            "the tag tag:yaml.org,2002:python/object:os.system is not supported",
        ),
        ("? [a]\n: 1", "line 1: a key must be plain text"),
        ("<<: 3", "line 1: <<: must be followed by a mapping of keys"),
    ],
)
def test_what_has_no_meaning_in_a_plain_file_is_refused(text, message):
    (problem,) = problems(text)
    assert message in problem


# Whole files


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("# nothing\n", "the file is empty"),
        ("---\n", "the file is empty"),
        ("- a\n- b", "line 1: must be a mapping of keys at top level, got a list"),
        ("hello", "line 1: must be a mapping of keys at top level, got 'hello'"),
        ("a: 1\n---\nb: 2", "line 2: holds more than one YAML document; give one per file"),
        ("a:\n\tb: 1", "line 2: is indented with a tab; YAML wants spaces"),
        ("a: 1\n b: 2", "line 2: is not valid YAML: mapping values are not allowed"),
        ("a: [1", "line 1: is not valid YAML"),
        ("a: \x00", "line 1: is not a text file: it holds the character U+0000"),
    ],
)
def test_texts_that_are_no_document(text, message):
    (problem,) = problems(text)
    assert problem.startswith(message)


@pytest.mark.parametrize("unit", ["[", "{a: ", "- "])
@pytest.mark.parametrize("loader", ["C", "python"])
def test_deep_nesting_is_refused_without_recursion(unit, loader, monkeypatch):
    if loader == "python":
        monkeypatch.setattr(yaml_text, "_LOADER", yaml.SafeLoader)
    (problem,) = problems("x:\n " + unit * 10_000)
    assert "nest" in problem


def test_the_pure_python_parser_gives_the_same(monkeypatch):
    text = "name: a\nfleet:\n- {gpu: x, rdma: no}\n- gpu: 'y'\n  max_gpus: 7 # all\n"
    with_c = parse_tree(text, "s")
    monkeypatch.setattr(yaml_text, "_LOADER", yaml.SafeLoader)
    assert parse_tree(text, "s") == with_c


def test_byte_order_mark_and_windows_line_ends_are_fine(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_bytes(b"\xef\xbb\xbfname: a\r\nrate: 2\r\n")
    assert load_document(path, Sample).model.rate == 2


def test_json_is_accepted(tmp_path):
    path = tmp_path / "s.json"
    path.write_text('{"name": "a", "rate": 1e3, "fleet": [{"gpu": "x", "max_gpus": 3}]}')
    assert load_document(path, Sample).raw == {
        "name": "a",
        "rate": 1000.0,
        "fleet": [{"gpu": "x", "max_gpus": 3}],
    }


def test_lines_of_keys_are_kept():
    tree = parse_document("name: a\nfleet:\n- gpu: x\n- rdma: true\n  gpu: y\n", "s", Sample).tree
    assert [tree.line(("fleet",)), tree.line(("fleet", 1)), tree.line(("fleet", 1, "gpu"))] == [2, 4, 5]
    assert tree.line(("fleet", 1, "absent")) == 4


def test_binary_files_are_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(bytes(range(256)) * 10)
    with pytest.raises(SpecError, match=r"safetensors: 1 problem\n  - line \d+: is not a text file in UTF-8"):
        load_document(path, Sample)


def test_large_files_are_refused_without_reading(tmp_path):
    path = tmp_path / "big.yaml"
    with path.open("wb") as file:
        file.truncate(100_000_000)
    start = time.process_time()
    with pytest.raises(SpecError, match="is larger than 5 MB"):
        load_document(path, Sample)
    assert time.process_time() - start < 0.2


def test_files_just_below_the_limit_are_read_in_bounded_time(tmp_path):
    path = tmp_path / "long.yaml"
    path.write_text("fleet:\n" + "- {gpu: a}\n" * 400_000)
    start = time.process_time()
    with pytest.raises(SpecError, match="holds more than 100,000 values"):
        load_document(path, Sample)
    assert time.process_time() - start < 2


def test_devices_without_an_end_are_refused():
    if not Path("/dev/zero").exists():
        pytest.skip("no /dev/zero")
    with pytest.raises(SpecError, match="is larger than 5 MB"):
        read_text("/dev/zero")


def test_missing_files_are_refused_with_the_nearest_name(tmp_path):
    (tmp_path / "scenario.yaml").write_text("a: 1")
    with pytest.raises(SpecError, match=r"no such file \(did you mean .*scenario\.yaml\?\)"):
        read_text(tmp_path / "scenaro.yaml")
    with pytest.raises(SpecError, match="no such file"):
        read_text(tmp_path / "nowhere" / "scenario.yaml")


def test_folders_are_refused(tmp_path):
    with pytest.raises(SpecError, match="is a folder, not a file"):
        read_text(tmp_path)


def test_names_that_no_file_can_have_are_refused():
    for name in ("a\0b", "x" * 5000):
        with pytest.raises(SpecError):
            read_text(name)


def test_unreadable_files_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "s.yaml"
    path.write_text("a: 1")

    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(SpecError, match="cannot be read: Permission denied"):
        read_text(path)


# Writing


def test_writing_replaces_the_file_and_keeps_its_permissions(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text("old")
    path.chmod(0o640)
    write_text_atomic(path, "new é\n")
    assert path.read_bytes() == "new é\n".encode()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["plan.yaml"]


def test_new_files_get_the_usual_permissions(tmp_path):
    plain, atomic = tmp_path / "plain", tmp_path / "atomic"
    plain.write_text("")
    write_text_atomic(atomic, "")
    assert atomic.stat().st_mode == plain.stat().st_mode


def test_writing_goes_through_symbolic_links(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_text_atomic(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_failed_writing_leaves_everything_as_it_was(tmp_path, monkeypatch, error):
    path = tmp_path / "plan.yaml"
    path.write_text("old")

    def fail(descriptor):
        raise error

    monkeypatch.setattr(os, "fsync", fail)
    expected = KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else SpecError
    with pytest.raises(expected):
        write_text_atomic(path, "new")
    assert os.listdir(tmp_path) == ["plan.yaml"]
    assert path.read_text() == "old"


def test_writing_into_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(SpecError, match=r"cannot be written: there is no folder .*nowhere"):
        write_text_atomic(tmp_path / "nowhere" / "plan.yaml", "x")


def test_writing_over_a_folder_is_refused(tmp_path):
    with pytest.raises(SpecError, match="is a folder"):
        write_text_atomic(tmp_path, "x")


def test_writing_where_it_is_not_allowed_is_refused(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(SpecError, match=r"plan\.yaml: 1 problem\n  - cannot be written: Permission denied"):
        write_text_atomic(tmp_path / "plan.yaml", "x")


def test_what_cannot_be_written_is_found_out_before(tmp_path, monkeypatch):
    check_writable(tmp_path / "plan.yaml")
    check_writable(os.devnull)
    assert os.listdir(tmp_path) == []
    with pytest.raises(SpecError, match="is a folder"):
        check_writable(tmp_path)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(SpecError, match="cannot be written: Permission denied"):
        check_writable(tmp_path / "plan.yaml")


def test_devices_can_be_written():
    write_text_atomic(os.devnull, "x")


def test_dumped_text_is_read_back_as_it_was():
    awkward = list("-<=~[{*&!%@`|\"'#:?,>")
    awkward += ["1e3", "010", "12:30", "no", "Yes", "null", "1_000", "0x1", ".inf", "2024-01-01", "#c"]
    awkward += ["<<", "'q'"]
    awkward += ["", "a: b", "- x", " lead", "trail ", "two\nlines", "tab\there", "é €", "x" * 300]
    awkward += ["\u2028", "\x85", "\x7f", "\r", "a\u2028b", "a\n\x85 b\n"]
    data = {"list": awkward, "map": dict.fromkeys(awkward, 1), "numbers": [1, 1.5, 1e-7, 1e22, True, None]}
    tree, found = parse_tree(dump_yaml(data), "s")
    assert found == []
    assert tree.raw == data


def test_dumped_text_has_no_aliases_and_no_wrapped_lines():
    shared = {"a": "word " * 100}
    text = dump_yaml({"x": shared, "y": shared})
    assert "&" not in text
    assert len(text.splitlines()) == 4
