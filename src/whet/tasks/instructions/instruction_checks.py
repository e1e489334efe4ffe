"""The 25 checks of IFEval, each a function of a response and the arguments of its instruction.

They follow the definitions in Zhou et al. 2023, "Instruction-Following Evaluation for Large Language Models"
(arXiv:2311.07911), table 2. A response with fewer than five different letters or digits follows no instruction, where
the paper's program only refuses blank ones: most instructions forbid something, which "x" does not do either.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, signature
from typing import Any

from whet.errors import UserError
from whet.tasks.instructions.sentences import sentences, words

Check = Callable[..., bool]
Detector = Callable[[str], str]

AT_LEAST, LESS_THAN = "at least", "less than"
CHOICES = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
FENCE = re.compile(r"```(?:json)?\s*\n?(.*?)\n?\s*```", re.DOTALL | re.IGNORECASE)
LEAST_LETTERS = 5  # different ones of a response


def existence(text: str, *, keywords: Sequence[str]) -> bool:
    """Every keyword occurs, in any case, also inside of a word."""
    return all(keyword.lower() in text.lower() for keyword in keywords)


def frequency(text: str, *, keyword: str, frequency: int, relation: str = AT_LEAST) -> bool:
    """How often a keyword occurs, in any case, also inside of a word."""
    return _compared(text.lower().count(keyword.lower()), relation, frequency)


def forbidden_words(text: str, *, forbidden_words: Sequence[str]) -> bool:
    """No such word occurs as a whole word, in any case."""
    return not any(re.search(rf"\b{re.escape(word)}\b", text, re.IGNORECASE) for word in forbidden_words)


def letter_frequency(text: str, *, letter: str, let_frequency: int, let_relation: str = AT_LEAST) -> bool:
    """How often a letter or sign occurs, in any case."""
    return _compared(text.lower().count(letter.lower()), let_relation, let_frequency)


def response_language(text: str, *, language: str, detector: Detector) -> bool:
    """The whole response is in a language."""
    return detector(text) == language


def number_sentences(text: str, *, num_sentences: int, relation: str = AT_LEAST) -> bool:
    return _compared(len(sentences(text)), relation, num_sentences)


def number_paragraphs(text: str, *, num_paragraphs: int) -> bool:
    """Exactly so many paragraphs with *** between them; none is empty."""
    parts = re.split(r"(?<!\*)\*\*\*(?!\*)", text.strip().removeprefix("***").removesuffix("***"))
    return len(parts) == num_paragraphs and all(part.strip() for part in parts)


def number_words(text: str, *, num_words: int, relation: str = AT_LEAST) -> bool:
    return _compared(len(words(text)), relation, num_words)


def nth_paragraph_first_word(text: str, *, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    """Exactly so many paragraphs with an empty line between them, of which the nth begins with a word."""
    parts = [part for part in re.split(r"\n[ \t]*\n", text) if part.strip()]
    if len(parts) != num_paragraphs or not 1 <= nth_paragraph <= len(parts):
        return False
    first = re.match(r"[^\w]*([\w'’-]+)", parts[nth_paragraph - 1])
    return first is not None and first[1].lower() == first_word.lower()


def number_placeholders(text: str, *, num_placeholders: int) -> bool:
    """At least so many placeholders in square brackets, such as [address]."""
    return len(re.findall(r"\[[^\[\]\n]+\]", text)) >= num_placeholders


def postscript(text: str, *, postscript_marker: str) -> bool:
    """The marker, e.g. P.S. or P.P.S, in any case, and text after it."""
    letters = [re.escape(letter) for letter in re.sub(r"\W", "", postscript_marker)]
    marker = r"\.?\s?".join(letters) if "." in postscript_marker else re.escape(postscript_marker)
    return re.search(rf"(?<![\w.]){marker}[.:]*\s*[^\s.:]", text, re.IGNORECASE) is not None


def number_bullet_lists(text: str, *, num_bullets: int) -> bool:
    """Exactly so many lines that begin with "* " or "- ", or with one of them before a word; rules (* * *) are none."""
    found = re.findall(r"^(?![-* \t]+$)[ \t]*(?:[*-][ \t]+\S|-[^\s-]|\*[^\s*])", text, re.MULTILINE)
    return len(found) == num_bullets


def constrained_response(text: str) -> bool:
    """One of the three answers, and no other of them."""
    return sum(choice in text for choice in CHOICES) == 1


def number_highlighted_sections(text: str, *, num_highlights: int) -> bool:
    """At least so many passages in *single* or **double** asterisks."""
    found = re.findall(r"\*\*[^\n*]+\*\*|(?<!\*)\*[^\n*]+\*(?!\*)", text)
    return sum(bool(one.strip("*").strip()) for one in found) >= num_highlights


def multiple_sections(text: str, *, section_spliter: str, num_sections: int) -> bool:
    """At least so many headings such as "Section 1"."""
    return len(re.findall(rf"\b{re.escape(section_spliter.strip())}\s*\d+", text)) >= num_sections


def json_format(text: str) -> bool:
    """The whole response is JSON, also inside of one Markdown fence."""
    fenced = FENCE.fullmatch(text.strip())
    body = fenced[1] if fenced else text.strip()
    try:
        json.loads(body)
    except (ValueError, RecursionError):
        return False
    return True


def title(text: str) -> bool:
    """A title in double angular brackets, such as <<poem of joy>>."""
    return any(found.strip(" <>") for found in re.findall(r"<<([^\n]+?)>>", text))


def two_responses(text: str) -> bool:
    """Two different responses, separated by six asterisks ******."""
    parts = [part.strip() for part in text.split("******")]
    return len(parts) == 2 and all(parts) and parts[0] != parts[1]


def repeat_prompt(text: str, *, prompt_to_repeat: str) -> bool:
    """The response begins with the request, word for word, and goes on after it."""
    given, wanted = text.strip().lower(), prompt_to_repeat.strip().lower()
    return given.startswith(wanted) and bool(given[len(wanted) :].strip())


def end_checker(text: str, *, end_phrase: str) -> bool:
    """The response ends with this phrase, in any case."""
    return text.strip().strip('"').rstrip().lower().endswith(end_phrase.strip().lower())


def quotation(text: str) -> bool:
    """The whole response is between double quotation marks."""
    text = text.strip()
    return len(text) > 2 and text[0] == text[-1] == '"' and bool(text[1:-1].strip())


def capital_word_frequency(text: str, *, capital_frequency: int, capital_relation: str = AT_LEAST) -> bool:
    """How many words are all in capital letters."""
    return _compared(
        sum(word.isupper() for word in re.findall(r"\w+(?:[-'’]\w+)*", text)), capital_relation, capital_frequency
    )


def english_capital(text: str, *, detector: Detector) -> bool:
    """English, and in capital letters only."""
    return text.isupper() and detector(text.lower()) == "en"


def english_lowercase(text: str, *, detector: Detector) -> bool:
    """English, and in small letters only."""
    return text.islower() and detector(text) == "en"


def no_comma(text: str) -> bool:
    return not re.search("[,，、،]", text)


CHECKS: dict[str, Check] = {
    "keywords:existence": existence,
    "keywords:frequency": frequency,
    "keywords:forbidden_words": forbidden_words,
    "keywords:letter_frequency": letter_frequency,
    "language:response_language": response_language,
    "length_constraints:number_sentences": number_sentences,
    "length_constraints:number_paragraphs": number_paragraphs,
    "length_constraints:number_words": number_words,
    "length_constraints:nth_paragraph_first_word": nth_paragraph_first_word,
    "detectable_content:number_placeholders": number_placeholders,
    "detectable_content:postscript": postscript,
    "detectable_format:number_bullet_lists": number_bullet_lists,
    "detectable_format:constrained_response": constrained_response,
    "detectable_format:number_highlighted_sections": number_highlighted_sections,
    "detectable_format:multiple_sections": multiple_sections,
    "detectable_format:json_format": json_format,
    "detectable_format:title": title,
    "combination:two_responses": two_responses,
    "combination:repeat_prompt": repeat_prompt,
    "startend:end_checker": end_checker,
    "startend:quotation": quotation,
    "change_case:capital_word_frequency": capital_word_frequency,
    "change_case:english_capital": english_capital,
    "change_case:english_lowercase": english_lowercase,
    "punctuation:no_comma": no_comma,
}


def arguments_of(name: str, given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The arguments of an instruction, checked; null means absent."""
    if name not in CHECKS:
        raise UserError(f"{where} has the instruction {name!r:.80}, which is not one of IFEval's {len(CHECKS)}")
    wanted = signature(CHECKS[name]).parameters
    found = {key: value for key, value in given.items() if value is not None}
    for key, value in found.items():
        if key not in wanted or key in ("text", "detector"):
            raise UserError(f"{where}: {name} has no argument {key!r:.80}")
        kind: Any = wanted[key].annotation
        is_right = _is_texts(value) if kind == Sequence[str] else type(value) is kind
        if not is_right or (key.endswith("relation") and value not in (AT_LEAST, LESS_THAN)):
            raise UserError(f"{where}: {key} of {name} is {value!r:.80}, which it cannot be")
    for key, parameter in wanted.items():
        if key not in (*found, "text", "detector") and parameter.default is Parameter.empty:
            raise UserError(f"{where}: {name} needs the argument {key!r}")
    return found


def follows(text: str, name: str, arguments: Mapping[str, Any], detector: Detector) -> bool:
    """Whether a response follows an instruction, strictly."""
    if len({sign for sign in text.lower() if sign.isalnum()}) < LEAST_LETTERS:
        return False
    check = CHECKS[name]
    more = {"detector": detector} if "detector" in signature(check).parameters else {}
    return check(text, **arguments, **more)


def follows_loosely(text: str, name: str, arguments: Mapping[str, Any], detector: Detector) -> bool:
    """Whether it does so without its first line, its last line, both or none, and with or without asterisks."""
    lines = text.split("\n")
    parts = (lines, lines[1:], lines[:-1], lines[1:-1])
    variants = dict.fromkeys("\n".join(part).strip() for part in parts)
    variants |= dict.fromkeys(variant.replace("*", "") for variant in tuple(variants))
    return follows(text, name, arguments, detector) or any(
        follows(variant, name, arguments, detector) for variant in variants
    )


def _compared(count: int, relation: str, number: int) -> bool:
    return count >= number if relation == AT_LEAST else count < number


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, str) and one for one in value)
