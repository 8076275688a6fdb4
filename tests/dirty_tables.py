"""Tables as hospitals really export them, for tests of the whole path."""

from pathlib import Path

import numpy as np

#: The predictors that are left of the German table, in its order.
GERMAN_FEATURES = (
    "Geschlecht", "Alter", "Diabetes", "Gesamtcholesterin", "Kreatinin", "Bilirubin", "Troponin",
    "Herzfrequenz",
)  # fmt: skip

GERMAN_ROLES = {"label": "Verstorben", "center": "Klinik"}


def german_table(path: Path, rows: int = 1200, seed: int = 5) -> Path:
    """A German export: semicolons, Windows-1252, decimal commas, detection limits ("<0,5", "> 89"), words for
    missing ("n.b."), 999 for missing, case numbers, dates, length of stay, repeated patients, and cholesterol
    in mmol/L at one of six hospitals. The outcome depends on age, troponin and creatinine."""
    rng = np.random.default_rng(seed)
    clinics = np.array(["Köln", "München", "Graz", "Zürich", "Düsseldorf", "Lübeck"])
    clinic = clinics[np.arange(rows) % len(clinics)]
    person = rng.integers(0, int(0.7 * rows), rows)
    age = np.round(rng.normal(68, 12, rows)).clip(18, 95)
    male = rng.random(rows) < 0.55
    troponin = rng.gamma(1.5, 0.9, rows)
    creatinine = rng.gamma(4.0, 0.3, rows)
    cholesterol = rng.normal(200, 35, rows).clip(90, 400)
    cholesterol = np.where(clinic == "Graz", cholesterol / 38.67, cholesterol)
    bilirubin = rng.gamma(2.0, 0.4, rows)
    rate = np.round(rng.normal(84, 14, rows))
    risk = -2.2 + 0.05 * (age - 68) + 0.7 * (troponin - 1.3) + 0.8 * (creatinine - 1.2)
    died = rng.random(rows) < 1 / (1 + np.exp(-risk))
    lines = [
        "Fallnummer;Patientennummer;Klinik;Aufnahmedatum;Geschlecht;Alter;Diabetes;Gesamtcholesterin;Kreatinin;"
        "Bilirubin;Troponin;Herzfrequenz;Liegedauer;Verstorben"
    ]
    for k in range(rows):
        number = "n.b." if rng.random() < 0.15 else f"{bilirubin[k]:.1f}"
        cells = [
            f"{2024000000 + 17 * k}",
            f"P{10000 + person[k]}",
            clinic[k],
            f"{1 + k % 28:02d}.{1 + k % 12:02d}.{2019 + k % 4}",
            "männlich" if male[k] else "weiblich",
            "> 89" if age[k] > 89 else f"{age[k]:.0f}",
            "ja" if rng.random() < 0.3 else "nein",
            f"{cholesterol[k]:.1f}",
            f"{creatinine[k]:.2f}",
            number,
            "<0,5" if troponin[k] < 0.5 else f"{troponin[k]:.2f}",
            "999" if rng.random() < 0.03 else f"{rate[k]:.0f}",
            f"{rng.integers(1, 30)}",
            "ja" if died[k] else "nein",
        ]
        lines.append(";".join(cell.replace(".", ",") if _is_decimal(cell) else cell for cell in cells))
    path.write_bytes("\r\n".join(lines).encode("cp1252"))
    return path


def _is_decimal(cell: str) -> bool:
    """Whether a cell is a number with a decimal point."""
    return cell.replace(".", "", 1).isdigit() and cell.count(".") == 1
