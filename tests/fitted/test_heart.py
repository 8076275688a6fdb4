"""The card of a fit on UCI Heart: four real hospitals, real gaps."""

import abps
from abps.cohorts import heart
from abps.cohorts.tidy import of_cohort, write_table
from abps.fitted.fit import fit
from abps.fitted.handover import write_models


def test_the_card_of_uci_heart_is_complete(data, tmp_path):
    cohort = heart.build(data("heart-disease"))
    write_table(cohort.table, of_cohort(cohort), tmp_path / "heart.parquet")
    federation = abps.read_table(tmp_path / "heart.parquet")
    fitted = fit(federation, "fedavg", rounds=10, settings={"model": "gam"}, folds=3)
    folders = write_models(fitted, tmp_path / "models")
    assert set(folders) == {"cleveland", "hungarian", "switzerland", "va"}
    assert fitted.overall.area.value > 0.85
    for center, folder in folders.items():
        card = (folder / "card.md").read_text()
        for title in (
            "Intended use", "Cohort and flow", "Predictors and missing values", "How it was made",
            "Performance on patients the model had not seen", "Alone or together", "Calibration",
            "Decisions and thresholds", "Subgroups",
            "What every column adds", "Limits and versions", "Checklist of TRIPOD+AI",
        ):  # fmt: skip
            assert f"## {title}" in card
        assert f"disease at {center}" in card and "nan" not in card and "None" not in card
        assert (folder / "curve-0-age.svg").exists()
    # Every patient counts: hardly anybody in Switzerland is without disease, and yet there is an interval.
    assert fitted.evaluations["switzerland"].area.others == 8
    assert "No column was recognised" not in card and "sex" in card
