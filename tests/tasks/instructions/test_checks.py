"""The checks of IFEval: for each instruction responses that follow it and responses that do not, written by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.errors import UserError
from whet.tasks.instructions.instruction_checks import CHECKS, arguments_of, follows, follows_loosely
from whet.tasks.instructions.languages import language_by_words
from whet.tasks.instructions.sentences import sentences, words

ENGLISH = "this is the way that we went to the sea when it was warm and the sun was out"
THREE = "One sentence here. And a second one! Is this the third?"

# instruction, arguments, what follows it, what does not
CASES: list[tuple[str, dict[str, Any], list[str], list[str]]] = [
    (
        "keywords:existence",
        {"keywords": ["Coffee", "tea"]},
        ["I like coffee and TEA.", "teapots of coffee"],
        ["I like coffee.", "I like c-o-f-f-e-e and tea.", "cofffee teas"],
    ),
    (
        "keywords:frequency",
        {"keyword": "war", "frequency": 2, "relation": "at least"},
        ["War and war again", "warfare is war"],
        ["Only one war here", "no such word at all"],
    ),
    (
        "keywords:frequency",
        {"keyword": "war", "frequency": 2, "relation": "less than"},
        ["Only one war here", "no such word at all"],
        ["War and war again", "war war war and peace"],
    ),
    (
        "keywords:forbidden_words",
        {"forbidden_words": ["rock", "c++"]},
        ["A rocket flies high", "some pebbles and sand"],
        ["They ROCK the house", "a rock, of course", "rock-solid things"],
    ),
    (
        "keywords:letter_frequency",
        {"letter": "q", "let_frequency": 3, "let_relation": "at least"},
        ["Quick quiet queen", "qqq and others"],
        ["quick queen here", "nothing to count"],
    ),
    (
        "keywords:letter_frequency",
        {"letter": "#", "let_frequency": 1, "let_relation": "less than"},
        ["no such sign here"],
        ["#one sign here"],
    ),
    (
        "language:response_language",
        {"language": "de"},
        ["Das ist ein Haus und der Hund ist nicht in dem Garten, aber die Katze ist auf dem Dach."],
        ["This is a house and the dog is not in the garden.", "Le chien est dans la maison avec les enfants."],
    ),
    (
        "language:response_language",
        {"language": "ko"},
        ["안녕하세요 저는 학생입니다"],
        ["Hello in Korean is annyeong", "こんにちは、元気ですか"],
    ),
    (
        "language:response_language",
        {"language": "hi"},
        ["यह एक किताब है और मैं इसे पढ़ रहा हूँ"],
        ["हे एक पुस्तक आहे आणि मी ते वाचत आहे", "this is a book and I am reading it"],
    ),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 3, "relation": "at least"},
        [THREE, f"{THREE} Four more."],
        ["Two are here. Not more", "One long sentence, with e.g. Mr. Smith in it"],
    ),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 3, "relation": "less than"},
        ["Two are here. Not more", "It costs 3.50 in the U.S. today."],
        [THREE],
    ),
    (
        "length_constraints:number_paragraphs",
        {"num_paragraphs": 2},
        ["first part\n***\nsecond part", "first part *** second part", "***\nfirst part\n***\nsecond part\n***"],
        ["only one part", "first\n\nsecond part", "one *** two *** three", "first part\n***\n\n***\nsecond part"],
    ),
    (
        "length_constraints:number_words",
        {"num_words": 4, "relation": "at least"},
        ["one two three four", "well-known words count twice"],
        ["only three words"],
    ),
    (
        "length_constraints:number_words",
        {"num_words": 4, "relation": "less than"},
        ["only three words"],
        ["one two three four"],
    ),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "weekend"},
        ["Some text here.\n\nWeekend plans come next.", 'First part.\n\n"Weekend" is a word.'],
        [
            "Weekend first.\n\nThen other text.",
            "Only one, weekend.",
            "One.\n\nWeekends are fun.",
            "One.\n\nweekend\n\nthree",
        ],
    ),
    (
        "detectable_content:number_placeholders",
        {"num_placeholders": 2},
        ["Dear [name], I live in [address].", "[one][two] others"],
        ["Dear [name], hello", "[] [] and nothing", "[[name] here"],
    ),
    (
        "detectable_content:postscript",
        {"postscript_marker": "P.S."},
        ["A letter.\nP.S. I like it", "A letter.\n\np.s. more here", "A letter\n P. S. more here"],
        ["A letter without it", "A letter.\nP.S.", "maps of the place", "a letter.\nPhrases here"],
    ),
    (
        "detectable_content:postscript",
        {"postscript_marker": "P.P.S"},
        ["A letter.\nP.P.S I like it", "A letter.\nP.P.S. I like it"],
        ["A letter.\nP.S. I like it", "clippps are nice"],
    ),
    (
        "detectable_format:number_bullet_lists",
        {"num_bullets": 2},
        ["* first one\n* second one", "Intro:\n- first one\n- second one\nend", "* first one\n- second one"],
        [
            "* only one bullet",
            "- one\n- two\n- three",
            "first one\nsecond one",
            "---\n* rule above",
            "**bold** one\n* two",
        ],
    ),
    (
        "detectable_format:constrained_response",
        {},
        ["My answer is yes.", "Well. My answer is no.", "My answer is maybe."],
        ["My answer is Yes", "Yes of course", "My answer is yes. My answer is no. My answer is maybe."],
    ),
    (
        "detectable_format:number_highlighted_sections",
        {"num_highlights": 2},
        ["*first part* and *second part*", "**first part** and *second part*"],
        ["*first part* only", "** ** and * * nothing", "* a list item\n* another item", "no asterisks here"],
    ),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "SECTION", "num_sections": 2},
        ["SECTION 1\nsome text\nSECTION 2\nmore text"],
        ["SECTION 1\nsome text", "SECTION one\nSECTION two", "Section 1 text Section 2 text"],
    ),
    (
        "detectable_format:json_format",
        {},
        ['{"answer": "yes it is"}', '```json\n{"answer": "maybe"}\n```', '["first", "second"]'],
        ["answer: yes", '{"answer": "yes it is"} and more', "{'answer': 'yes it'}", "[" * 100_000 + "abcde"],
    ),
    (
        "detectable_format:title",
        {},
        ["<<A poem of joy>>\nlines"],
        ["<A poem of joy>", "<<>> no title", "<< >> no title"],
    ),
    (
        "combination:two_responses",
        {},
        ["first answer\n******\nsecond answer"],
        ["first answer", "same text******same text", "first******second******third", "******only one answer"],
    ),
    (
        "combination:repeat_prompt",
        {"prompt_to_repeat": "Write a haiku."},
        ["Write a haiku. Old pond and so on", "write a haiku.\n\nOld pond"],
        ["Old pond and so on", "Write a haiku.", "Sure! Write a haiku. Old pond"],
    ),
    (
        "startend:end_checker",
        {"end_phrase": "Is that all?"},
        ["Some words here. Is that all?", '"Some words. is that all?"', "Some words. Is that all?\n"],
        ["Is that all? Some words here.", "Some words. Is that all"],
    ),
    ("startend:quotation", {}, ['"All of it is quoted"'], ['"Only the start', "All of it, no quotes", '"a" and then']),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": "at least"},
        ["This is VERY GOOD text", "A B and others"],
        ["This is VERY good text", "This Is Not Enough"],
    ),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": "less than"},
        ["This is VERY good text"],
        ["This is VERY GOOD text"],
    ),
    ("change_case:english_capital", {}, [ENGLISH.upper()], [ENGLISH, "DAS IST EIN HAUS UND DER HUND IST HIER"]),
    ("change_case:english_lowercase", {}, [ENGLISH], [ENGLISH.capitalize(), "das ist ein haus und der hund ist hier"]),
    ("punctuation:no_comma", {}, ["no such sign here."], ["well, one is here", "全角，逗号在这里呢"]),
]


def test_every_instruction_has_cases() -> None:
    assert {name for name, *_ in CASES} == set(CHECKS)
    assert len(CHECKS) == 25


@pytest.mark.parametrize(("name", "arguments", "right", "wrong"), CASES, ids=[case[0] for case in CASES])
def test_responses(name: str, arguments: dict[str, Any], right: list[str], wrong: list[str]) -> None:
    arguments = arguments_of(name, arguments, "row")
    assert [text for text in right if not follows(text, name, arguments, language_by_words)] == []
    assert [text for text in wrong if follows(text, name, arguments, language_by_words)] == []
    for nothing in ("", " ", "\n", "x" * 5000, "\x00", "🦙 ¿?", "....", "abab abab"):
        assert not follows(nothing, name, arguments, language_by_words)


def test_the_loose_criterion_forgives_an_introduction_an_ending_and_emphasis() -> None:
    name, arguments = "startend:end_checker", {"end_phrase": "the end."}
    text = "Here it is:\nA tale and **the end.**\nI hope that helps"
    assert not follows(text, name, arguments, language_by_words)
    assert follows_loosely(text, name, arguments, language_by_words)
    assert not follows_loosely("Two lines\nbefore the end.\nand\ntwo after", name, arguments, language_by_words)
    assert not follows_loosely("", name, arguments, language_by_words)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (THREE, 3),
        ("Dr. A. Smith paid 3.50 for it, e.g. in the U.S. last year. Was it much?", 2),
        ('He said "Stop." Then he left.', 2),
        ("Wait... what is it?! Nothing", 2),
        ("1. First item.\n2. Second item.", 2),
        ("A heading\n\nA sentence without an end", 2),
        ("今天很好。明天呢？", 2),
        ("", 0),
        ("... !!", 0),
    ],
)
def test_sentences(text: str, count: int) -> None:
    assert len(sentences(text)) == count


@given(st.lists(st.sampled_from(["The sea?", "It is!", "Dr No?!", "3 don't!", "a co-op?", '"Why?"', "e.g. this!"])))
def test_sentences_that_are_joined_are_found_again(some: list[str]) -> None:
    assert sentences(" ".join(some)) == some


@given(st.text(max_size=200), st.sampled_from([(name, given) for name, given, *_ in CASES]))
def test_no_text_raises_and_strict_implies_loose(text: str, case: tuple[str, dict[str, Any]]) -> None:
    name, arguments = case
    strict = follows(text, name, arguments, language_by_words)
    assert not strict or follows_loosely(text, name, arguments, language_by_words)


@pytest.mark.parametrize(
    ("name", "given", "sentence"),
    [
        ("keywords:other", {}, "which is not one of IFEval's 25"),
        ("keywords:existence", {}, "needs the argument 'keywords'"),
        ("keywords:existence", {"keywords": "word"}, "which it cannot be"),
        ("keywords:existence", {"keywords": []}, "which it cannot be"),
        ("punctuation:no_comma", {"number": 1}, "has no argument 'number'"),
        ("change_case:english_capital", {"detector": 1}, "has no argument 'detector'"),
        ("length_constraints:number_words", {"num_words": True}, "which it cannot be"),
        ("length_constraints:number_words", {"num_words": 3, "relation": "more"}, "which it cannot be"),
    ],
)
def test_other_instructions_are_refused(name: str, given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        arguments_of(name, given, "file:1")


def test_words() -> None:
    assert words("It's a well-known_thing, 3.5!") == ["It", "s", "a", "well", "known_thing", "3", "5"]


def test_null_is_absent() -> None:
    assert arguments_of("punctuation:no_comma", {"num_words": None}, "row") == {}
