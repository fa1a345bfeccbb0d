from __future__ import annotations

import pytest
from fakes import WordVocabulary
from hypothesis import example, given
from hypothesis import strategies as st

from fimlsp.prompt.builder import MAX_HEALED_TOKENS, Healed, encode, heal

PIECES = st.binary(min_size=2, max_size=5)
WORDS = (b"ret", b"return", b" return", b"self", b"(self", b"    ", b"        ", b"def", b" def")
SMALL = WordVocabulary(words=WORDS)
CJK = WordVocabulary(words=("中".encode()[:2], "中国".encode(), "é".encode(), "été".encode()))

text_like = st.text(alphabet=st.sampled_from("ab( 中é😀\n\t"), max_size=24)


def spelled(healed: Healed, vocabulary: WordVocabulary) -> bytes:
    kept = b"".join(vocabulary.token_bytes(token) for token in healed.tokens)
    return kept + healed.must_start_with


@given(st.text(max_size=40))
def test_kept_tokens_and_imposed_bytes_spell_exactly_what_was_typed(typed: str) -> None:
    for vocabulary in (SMALL, CJK):
        assert spelled(heal(typed, vocabulary), vocabulary) == encode(typed)


@given(text_like, st.lists(text_like.map(str.encode).filter(lambda w: len(w) > 1), max_size=6))
@example("xab", [b"xabc", b"ab"])
@example("aab", [b"aabb"])
def test_no_boundary_is_left_where_a_longer_token_could_stand(
    typed: str, words: list[bytes]
) -> None:
    vocabulary = WordVocabulary(words=sorted(set(words)))
    pieces = [vocabulary.token_bytes(token) for token in range(vocabulary.n_tokens)]
    tokens = vocabulary.tokenize(typed.encode())
    healed = heal(typed, vocabulary)
    kept = len(healed.tokens)
    assert list(healed.tokens) == tokens[:kept]
    for start in range(max(0, len(tokens) - MAX_HEALED_TOKENS), kept):
        tail = b"".join(pieces[token] for token in tokens[start:])
        assert not [p for p in pieces if p.startswith(tail) and p != tail], (tail, start)


@given(text_like, st.lists(text_like.map(str.encode).filter(lambda w: len(w) > 1), max_size=6))
def test_only_bytes_that_some_longer_token_starts_with_are_imposed(
    typed: str, words: list[bytes]
) -> None:
    vocabulary = WordVocabulary(words=sorted(set(words)))
    imposed = heal(typed, vocabulary).must_start_with
    assert not imposed or vocabulary.can_continue(imposed)


@pytest.mark.parametrize(
    ("typed", "kept", "imposed"),
    [
        ("ret", b"", b"ret"),  # "return"
        ("x ret", b"x", b" ret"),  # " return", across two tokens
        ("    ", b"", b"    "),  # deeper indentation
        ("(", b"", b"("),  # "(self"
        ("return", b"return", b""),
        ("x;", b"x;", b""),
    ],
)
def test_words_indentation_and_operators_may_go_on(typed: str, kept: bytes, imposed: bytes) -> None:
    healed = heal(typed, SMALL)
    assert b"".join(map(SMALL.token_bytes, healed.tokens)) == kept
    assert healed.must_start_with == imposed


def test_a_run_of_several_tokens_is_given_back_for_one_longer_token() -> None:
    vocabulary = WordVocabulary(words=[b"abcdefgh"])
    assert heal("xabcdefg", vocabulary) == Healed(tuple(b"x"), b"abcdefg")


def test_a_longer_run_counts_although_its_own_tail_can_go_no_further() -> None:
    vocabulary = WordVocabulary(words=[b"ab-cd"])
    assert not vocabulary.can_continue(b"-")
    assert heal("ab-", vocabulary).must_start_with == b"ab-"


def test_a_character_of_several_tokens_may_be_given_back_in_its_middle_and_is_whole_again() -> None:
    healed = heal("x中", CJK)
    assert healed == Healed(tuple(b"x"), "中".encode())
    vocabulary = WordVocabulary(words=["é".encode()[1:] + b"t"])  # a token across characters
    assert heal("é", vocabulary) == Healed(("é".encode()[0],), "é".encode()[1:])


def test_no_more_than_a_few_tokens_are_ever_given_back() -> None:
    vocabulary = WordVocabulary(words=[b"a" * 40])
    assert len(heal("a" * 30, vocabulary).must_start_with) == MAX_HEALED_TOKENS


def test_nothing_typed_imposes_nothing() -> None:
    assert heal("", SMALL) == Healed((), b"")


def test_a_tokeniser_that_normalises_loses_no_byte() -> None:
    class LowerCase(WordVocabulary):
        def tokenize(self, text: bytes) -> list[int]:
            return super().tokenize(text.lower())

    assert heal("Ab", LowerCase()) == Healed((), b"Ab")
    assert spelled(heal("ab", LowerCase()), SMALL) == b"ab"


def test_a_lone_surrogate_is_a_question_mark_and_no_error() -> None:
    assert spelled(heal("a\ud800b", SMALL), SMALL) == b"a?b"
