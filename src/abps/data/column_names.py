"""What a column's name says about its content, in English, German, French, Spanish, Italian and Portuguese.

A name is compared without accents, case and separators: ``EntlassungsDatum``, ``entlassungs_datum`` and
``Entlassungs-Datum`` are the same name.
"""

from __future__ import annotations

import re
import unicodedata

_HUMP = re.compile(r"(?<=[a-zà-ÿ0-9])(?=[A-ZÀ-Þ])")
_SEPARATOR = re.compile(r"[\W_]+")


def normalise(name: str) -> str:
    """A name in lower case, without accents, its words separated by single spaces.

    >>> normalise("AgeAtAdmission"), normalise("Âge_(années)"), normalise("Größe")
    ('age at admission', 'age annees', 'grosse')
    """
    plain = unicodedata.normalize("NFKD", _HUMP.sub(" ", name).replace("ß", "ss"))
    letters = "".join(c for c in plain if not unicodedata.combining(c))
    return _SEPARATOR.sub(" ", letters).strip().lower()


def _pattern(words: str, rest: str = "") -> re.Pattern[str]:
    """Whole words (a space in the list separates them, an underscore stands for a space), or ``rest``."""
    whole = "|".join(word.replace("_", " ") for word in words.split())
    return re.compile(rf"(^| )({whole})( |$){'|' + rest if rest else ''}")


_AGE = _pattern(
    "age ages alter lebensalter patientenalter aufnahmealter edad eta idade leeftijd alder anni_eta agegroup",
    r"^(age|alter|edad|eta)(jahre|years?|yrs?|annees|anos|anni)$",
)
_SEX = _pattern(
    "sex gender geschlecht sexe genre sexo genero sesso genere geslacht",
    r"^(is )?(male|female|mannlich|maennlich|weiblich|homme|femme|hombre|mujer|maschio|femmina|masculino"
    r"|feminino)$",
)
_ID = _pattern(
    "uid guid uuid mrn stayid subjectid patientid hadmid pid caseid recordid",
    r"^ids? |(^| )(ids?|key|idx|index|rownum|row|nr|no|num|number|nummer|kennung|numero|identifiant"
    r"|identificador|identificativo)$|(fall|patienten|pat|aufnahme|behandlungs|versicherten|akten|kranken"
    r"|proben|auftrags)(nummer|nr|id|kennung)( |$)|(^| )(n|no|num|numero)( de| di| do)? (dossier|sejour"
    r"|expediente|historia|episodio|cartella|nosologico|ricovero|processo|caso|cas)( |$)",
)
_PATIENT = _pattern(
    "patient patients patienten patientin pat pid mrn subject person proband paciente paziente patientid"
    " subjectid",
    r"(^| )(patient(en)?|pat|person(en)?|versicherten)(nummer|nr|id|kennung|schlussel|schluessel)( |$)",
)
_CASE = _pattern(
    "stay stayid hadm hadmid case caseid encounter visit episode admission record sample row sejour cas caso"
    " episodio ricovero aufenthalt aufnahme fall",
    r"(fall|aufnahme|behandlungs|auftrags|proben)(nummer|nr|id|kennung)( |$)",
)
_AFTER = _pattern(
    "dod outtime exit followup follow_up last_seen date_of_outcome sortie alta egreso uscita saida",
    r"disch|death|dead|deceas|expire|entlass|verlegungs|austritt|todes|sterbe|verstorben|deces|defuncion"
    r"|fallecim|dimission|decesso|obito",
)
_TIME = _pattern(
    "dod at on ts dt heure jour hora dia ora giorno zeit tage tag stunden jahr",
    r"time|date|datum|fecha|offset|minute|hour|day|year|zeitpunkt|stunde|minuten|uhrzeit|tage$",
)
_DATE = _pattern("date data fecha datum dt tag am", r"datum|date$|geburtstag")
_STAY = _pattern(
    "los length_of_stay stay_length lengthofstay days_in hours_in liegezeit estancia degenza giorni_degenza",
    r"liege(dauer|tage|zeit)|verweil(dauer|tage)|(aufenthalts|behandlungs|krankenhaus)dauer|belegungstage"
    r"|aufenthaltstage|duree( du| de)? sejour|(dias|duracion)( de)?( la)? (estancia|hospitalizacion"
    r"|internacao)"
    r"|(durata|giorni)( di| della)? (degenza|ricovero)|tempo de internacao|verblijfsduur|ligduur"
    r"|(^| )(icu|hosp|hospital|its|intensiv) ?(days|tage|hours|stunden)( |$)|(days|hours) in( |$)",
)
_PLACE = re.compile(
    r"(^| )(hospital|hosp|site|center|centre|clinic|ward|unit|doctor|physician|provider|surgeon|zip|postcode"
    r"|klinik|station|abteilung|arzt|hopital|service|medecin|centro|servicio|medico|reparto|ospedale)"
    r"( ?(id|nr|no|num|number|code|nummer|numero|codigo|codice))?$",
)
_PERSON = _pattern(
    "name names nom prenom vorname nachname dob birthday birth_date date_of_birth born born_on geburtsdatum"
    " geburtstag gebdat gebdatum geb_dat geb_datum ssn social_security mrn passport address street strasse"
    " postcode post_code zip zipcode zip_code phone telephone mobile fax mail email e_mail iban ip_address"
    " comment comments note notes free_text freetext remark remarks svnr ahv ahv_nr adresse plz postleitzahl"
    " telefon handy bemerkung bemerkungen kommentar apellido apellidos nombre nombres cognome geboortedatum"
    " achternaam voornaam date_de_naissance fecha_de_nacimiento fecha_nacimiento data_di_nascita"
    " data_nascita data_de_nascimento codice_fiscale indirizzo direccion telefono correo adresse_postale",
    r"(^| )(pat(ient)?|full|first|last|sur|fore|given|family|maiden|middle) ?names?( |$)"
    r"|(^| )(insurance|nhs|medicare) (no|nr|number|id)( |$)|versicher(ungs|ten) ?(nr|nummer)( |$)"
    r"|(fall|patienten) ?(nr|nummer)( |$)|patienten ?name( |$)",
)


def is_age(name: str) -> bool:
    """Whether a column holds ages, by its name.

    >>> [is_age(n) for n in ("Alter", "âge", "age_years", "edad", "età", "stage", "dosage", "page")]
    [True, True, True, True, True, False, False, False]
    """
    return bool(_AGE.search(normalise(name)))


def is_sex(name: str) -> bool:
    """Whether a column holds the patient's sex, by its name.

    >>> [is_sex(n) for n in ("Geschlecht", "sexe", "SEXO", "is_male", "gender", "Essex", "malaria")]
    [True, True, True, True, True, False, False]
    """
    return bool(_SEX.search(normalise(name)))


def is_identifier_name(name: str) -> bool:
    """Whether a column is called like an identifier: of a row, a stay, a case or a patient."""
    return bool(_ID.search(normalise(name)))


def is_patient_name(name: str) -> bool:
    """Whether a column is called like the key of a patient, and not of a stay or case."""
    plain = normalise(name)
    return bool(_PATIENT.search(plain)) and not _CASE.search(plain)


def is_length_of_stay(name: str) -> bool:
    """Whether a column is called like the length of a stay, which is known only at its end."""
    return bool(_STAY.search(normalise(name)))


def is_time_after(name: str) -> bool:
    """Whether a column is called like a time that is known only after the outcome: discharge, death."""
    plain = normalise(name)
    return bool(_AFTER.search(plain) and _TIME.search(plain))


def is_date_name(name: str) -> bool:
    """Whether a column is called like a date."""
    return bool(_DATE.search(normalise(name)))


def is_place_code(name: str) -> bool:
    """Whether a column is called like hospitals, wards or doctors, or like their codes."""
    return bool(_PLACE.search(normalise(name)))


def is_personal(name: str) -> bool:
    """Whether a column is called like something that says who somebody is: a name, an address, free text."""
    return bool(_PERSON.search(normalise(name)))
