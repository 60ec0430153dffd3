"""Comparison of groups: Welch's t by permutation of subjects, pairs, covariates, effect sizes, and false positives."""

from __future__ import annotations

import json

import numpy as np
import pytest
from command_line import polyadic
from scipy import stats
from threadpoolctl import threadpool_limits

from paper.comparison import DESIGNS, simulate_null
from polyadic import CPD
from polyadic.data import Windows, synthetic
from polyadic.errors import PolyadicError
from polyadic.explain import Comparison, Components, compare, compare_subjects, expression, level
from polyadic.explain.comparison import _sizes, _wald, _within_groups
from polyadic.report.components import describe_components

CODES = np.repeat([0, 1], [10, 20])


def drawn(seed: int, *sizes: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=sizes)


# ------------------------------------------------------------------ statistics


def test_two_groups_are_compared_by_the_t_of_welch():
    values = drawn(0, 30, 4) * np.where(CODES == 0, 3.0, 1.0)[:, None]
    expected = stats.ttest_ind(values[CODES == 1], values[CODES == 0], equal_var=False).statistic
    assert compare_subjects(values, CODES, permutations=9)["statistic"] == pytest.approx(expected)


def test_with_covariates_the_statistic_is_that_of_a_linear_model_with_robust_errors():
    sm = pytest.importorskip("statsmodels.api", reason="statsmodels is an oracle here")
    age, values = drawn(1, 30, 1), drawn(2, 30, 1)
    fitted = sm.OLS(values[:, 0], np.column_stack([CODES, np.ones(30), age])).fit(cov_type="HC2")
    found = compare_subjects(values, CODES, covariates=age, permutations=9)
    assert found["statistic"] == pytest.approx([fitted.tvalues[0]])


def test_three_groups_without_differences_have_an_f_around_one_and_a_difference_is_found():
    codes, values = np.repeat([0, 1, 2], 12), drawn(3, 36, 2)
    values[codes == 2, 1] += 3
    found = compare_subjects(values, codes, permutations=499)
    assert found["p"][1] == pytest.approx(1 / 500)
    assert found["p"][0] > 0.05
    assert found["effect"].shape == (2, 2)
    means = np.stack([values[codes == code, 0].mean() for code in range(3)])
    weights = np.array([12 / values[codes == code, 0].var(ddof=1) for code in range(3)])
    welch = (weights * (means - (weights * means).sum() / weights.sum()) ** 2).sum() / 2
    assert _wald(values[None], codes, np.ones((36, 1)))[0][0, 0] == pytest.approx(welch)


def test_pairs_are_compared_by_the_t_of_their_differences_whatever_the_order_of_the_rows():
    values, people = drawn(4, 24, 3), np.tile(np.arange(12), 2)
    codes = np.repeat([0, 1], 12)
    order = np.random.default_rng(0).permutation(24)
    found = compare_subjects(values[order], codes[order], people[order], permutations=9)
    assert found["statistic"] == pytest.approx(stats.ttest_rel(values[12:], values[:12]).statistic)
    assert found["n_subjects"] == (12, 12)


def test_permutations_of_few_subjects_give_the_exact_p_value():
    first = drawn(5, 6, 1)
    values = np.concatenate([first, 1.0 - first])  # of the same variance, which permutations then leave as it is
    codes = np.repeat([0, 1], 6)

    def score(first, second, axis):
        return 1 - stats.ttest_ind(first, second, equal_var=False, axis=axis).pvalue

    groups = (values[:6, 0], values[6:, 0])
    exact = stats.permutation_test(groups, score, vectorized=True, n_resamples=np.inf, alternative="greater").pvalue
    found = compare_subjects(values, codes, permutations=20_000)
    assert found["p"][0] == pytest.approx(exact, abs=0.005)


def test_a_p_value_near_5_percent_has_ten_times_as_many_permutations():
    values = np.random.default_rng(22).normal(size=(24, 1)) + np.repeat([[0.0], [0.85]], 12, axis=0)
    p = compare_subjects(values, np.repeat([0, 1], 12), permutations=1000)["p"][0]
    assert abs(p - 0.05) < 0.01
    assert p * 10_001 == pytest.approx(round(p * 10_001))


def test_the_effect_size_is_the_g_of_hedges():
    values = drawn(6, 30, 1)
    first, second = values[CODES == 0, 0], values[CODES == 1, 0]
    pooled = np.sqrt((9 * first.var(ddof=1) + 19 * second.var(ddof=1)) / 28)
    expected = (second.mean() - first.mean()) / pooled * (1 - 3 / 111)
    assert _sizes(values[None], CODES)[1, 0] == pytest.approx(expected)
    low, high = compare_subjects(values, CODES, permutations=1)["interval"][:, 0, 0]
    assert low < expected < high


def test_fewer_than_five_subjects_have_effect_sizes_only():
    found = compare_subjects(drawn(7, 12, 2), np.repeat([0, 1], [4, 8]))
    assert np.isnan(found["p"]).all()
    assert np.isnan(found["interval"]).all()
    assert np.isfinite(found["effect"]).all()


def test_few_subjects_are_called_no_findings_and_the_largest_difference_in_db_comes_first_with_its_sign():
    values = (drawn(8, 12, 3) + np.repeat([[0.0, 0.0, 0.0], [4.0, -4.0, 9.0]], 6, axis=0)) * [1, 2, 0.005]
    codes, names = np.repeat([0, 1], 6), ("level", "component 1", "component 2")
    numbers = compare_subjects(values, codes)
    where = ("", "", "Fz")
    found = Comparison(("a", "b"), numbers.pop("n_subjects"), 60, names, where, **numbers)
    words = found.words()
    assert words.index("component 1 lower in b (−") < words.index("level higher in b (+")
    assert "; 1 below 0.1 dB, negligible in size. Components are relative to the level" in words
    assert found.effect[0, 2] > found.effect[0, 0]
    size = (values[6:] - values[:6]).mean(axis=0)
    assert found.difference == pytest.approx(size[None])
    low, high = found.interval_db[:, 0]
    assert ((low < size) & (size < high)).all()
    few = compare_subjects(values[[0, 1, 2, 6, 7, 8]], codes[[0, 1, 2, 6, 7, 8]])
    sizes = few.pop("n_subjects")
    result = Comparison(("a", "b"), sizes, 60, names, where, **few)
    assert "3 a, 3 b subjects. Too few for a test or an interval" in repr(result)
    assert "low b" in repr(found)
    assert "low b" not in repr(result)
    assert result.to_dict()["rows"][0]["interval_95"] is None


def test_without_replicating_components_the_level_is_compared(windows):
    model = CPD(rank=2).fit(windows)
    model.components_ = Components(None, 0, 0, {1: 0}, 12, None)
    _, codes = np.unique(windows.subject, return_inverse=True)
    found = compare(model, windows, np.where(codes % 2, "b", "a"), permutations=9)
    assert found.names == ("level",)
    assert np.isfinite(found.p).all()


@pytest.mark.parametrize("design", ["very unequal windows", "covariate", "pairs"])
def test_about_five_percent_of_comparisons_without_a_difference_find_one(design):
    with threadpool_limits(1):  # threads slow such small products down
        assert 0.02 <= simulate_null(200, **DESIGNS[design]) <= 0.09


def test_permuted_subjects_take_the_scale_of_the_group_they_come_to():
    values = drawn(9, 60, 5) * np.repeat([4.0, 1.0], 30)[:, None]
    _, scales = _within_groups(values, np.repeat([0, 1], 30), np.zeros((60, 0)))
    assert scales[0] / scales[1] == pytest.approx(4, rel=0.2)
    assert _within_groups(values * [1, 10, 100, 1, 0], np.repeat([0, 1], 30), np.zeros((60, 0)))[1][0] > 0


# -------------------------------------------------------------------- windows


@pytest.fixture(scope="module")
def windows() -> Windows:
    return synthetic(240, n_channels=2)


@pytest.fixture(scope="module")
def model(windows):
    return CPD(rank=2).fit(windows)


def test_each_subject_counts_once_by_the_mean_over_its_windows(model, windows):
    people, codes = np.unique(windows.subject, return_inverse=True)
    group = np.where(codes % 2, "b", "a")
    found = compare(model, windows, group, permutations=49)
    values = np.column_stack([level(model, windows), expression(model, windows, relative=True)])
    means = np.stack([values[codes == code].mean(axis=0) for code in range(len(people))])
    expected = compare_subjects(means, np.arange(len(people)) % 2, permutations=49)
    assert found.p == pytest.approx(expected["p"])
    assert found.mean == pytest.approx(expected["mean"])
    assert sum(found.n_subjects) == len(people)
    assert repr(found).startswith(f"{found.n_subjects[0]} a, {found.n_subjects[1]} b subjects.")
    components = sorted(describe_components(model, model.axes()), key=lambda component: component.number)
    assert found.where == ("", *(", ".join(component.places[:2]) for component in components))  # as in the report
    assert found.to_dict()["rows"][2]["where"] == found.where[2]
    assert f"component 2, {found.where[2]} " in repr(found)
    assert "over 240 windows" in repr(found)


def test_a_louder_condition_is_a_level_and_no_component(model, windows):
    X = np.concatenate([windows.X, 1.5 * windows.X])
    both = Windows(X, windows.fs, subject=np.tile(windows.subject, 2), label=np.repeat(["rest", "task"], 240))
    found = compare(model, both, paired=True, permutations=999)
    assert found.groups == ("rest", "task")
    assert found.mean[1, 0] - found.mean[0, 0] == pytest.approx(20 * np.log10(1.5), abs=0.1)
    assert found.p[0] == pytest.approx(0.001)
    assert np.abs(found.mean[1, 1:] - found.mean[0, 1:]).max() < 0.1
    content = found.to_dict()
    assert content["paired"]
    assert content["rows"][0]["p_family_wise"] == pytest.approx(0.001)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": ["a", "b"] * 120}, r"several groups: use --paired \(paired=True\)"),
        ({"by": ["a"] * 240}, "at least two groups of at least two subjects"),
        ({"by": [""] * 240}, "no such windows"),
        (
            {"by": ["a", "b", "c", "d"] * 60, "paired": True},
            "compares two conditions, without covariates, but there are 4",
        ),
        ({"by": ["a", "b"] * 120, "paired": True, "covariates": {"age": np.ones(240)}}, "without covariates"),
    ],
)
def test_comparisons_that_make_no_sense_are_refused(model, windows, options, message):
    with pytest.raises(PolyadicError, match=message):
        compare(model, windows, **options)


# -------------------------------------------------------------------- command


@pytest.fixture(scope="module")
def folder(tmp_path_factory, model, windows):
    """Windows of the conditions rest and task, a model, and a table of the subjects."""
    folder = tmp_path_factory.mktemp("compare")
    model.save(folder / "model.safetensors")
    X = np.concatenate([windows.X, 1.5 * windows.X])
    names = {"subject": np.tile(windows.subject, 2), "label": np.repeat(["rest", "task"], 240)}
    recording = np.char.add(np.char.add(names["subject"].astype(str), "_"), names["label"])
    columns = {"y": names["label"], "subject": names["subject"], "recording": recording}
    np.savez(folder / "windows.npz", X=X, fs=windows.fs, **columns)
    people = np.unique(windows.subject).astype(str)
    rows = [f"{name},{'a' if place % 2 else 'b'},{20 + place}" for place, name in enumerate(people)]
    (folder / "people.csv").write_text("\n".join(["who,group,age", *rows]) + "\n")
    return folder


def test_the_command_compares_labels_names_and_columns(folder):
    words = ("compare", "windows.npz", "--model", "model.safetensors", "--permutations", 99)
    by_label = polyadic(*words, "--by", "label", "--paired", cwd=folder)
    by_name = polyadic(*words, "--by", "_(rest|task)", "--paired", cwd=folder)
    assert by_label.stdout == by_name.stdout
    assert " pairs. With a family-wise error" in by_label.stdout
    options = ("--by", "group", "--table", "people.csv", "--covariate", "age", "--within", "label=task")
    polyadic(*words, *options, "-o", "result.json", cwd=folder)
    content = json.loads((folder / "result.json").read_text())
    assert content["covariates"] == ["age"]
    assert content["windows"] == 240
    assert content["groups"] == ["a", "b"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--by", "sex", "--table", "people.csv"), "the columns are age, group, who"),
        (("--by", "sex"), "there is no participants.tsv and no --table"),
        (("--by", "label", "--within", "N2"), "must be one of the labels rest, task"),
        (("--by", "x(y)"), "matches no recording"),
        (("--by", "label"), "some subjects have windows in several groups"),
    ],
)
def test_the_command_says_what_cannot_be_compared(folder, options, message):
    failed = polyadic("compare", "windows.npz", "--model", "model.safetensors", *options, cwd=folder, code=1)
    assert message in " ".join(failed.stderr.split())


def test_transform_writes_level_and_relative_expression(folder, model, windows):
    words = ("transform", "model.safetensors", "windows.npz", "--expression", "-o")
    polyadic(*words, "expression.npy", cwd=folder)
    found = np.load(folder / "expression.npy")
    assert found[:240, 0] == pytest.approx(level(model, windows), abs=1e-4)
    assert found[:240, 1:] == pytest.approx(expression(model, windows, relative=True), abs=1e-4)
    polyadic(*words, "expression.csv", cwd=folder)
    heads = (folder / "expression.csv").read_text().splitlines()[0]
    assert heads == "subject,recording,start,label,level,component 1,component 2"
