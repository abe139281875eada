from ferrule.runs.journal.encode import entry_text, read_entry
from ferrule.runs.journal.entry import Entry
from ferrule.values.conversation.exchange import Request, Response
from ferrule.values.conversation.message import Message, Messages


def _entry(text: str = "hi") -> Entry:
    return Entry("0", "model", Request(Messages([Message("user", text)])), Response("yes"))


def test_an_entry_of_a_model_call_has_the_digest_of_its_request():
    request = Request(Messages([Message("user", "hi")]))
    assert _entry().digest == request.digest != _entry("ho").digest


def test_entries_are_equal_whether_or_not_their_digest_was_made():
    made = _entry()
    assert made.digest
    assert made == _entry() == read_entry(entry_text(_entry()))
    assert made != _entry("ho")
    assert repr(made) == repr(_entry()) == repr(read_entry(entry_text(_entry())))


def test_the_digest_does_not_keep_the_request_alive():
    entry = _entry()
    assert isinstance(entry.question, Request)
    assert entry.digest
    assert isinstance(entry.question, str)


def test_a_digest_covers_the_messages_up_to_its_own_request():
    messages = Messages([Message("user", "hi")])
    entry, expected = (
        Entry("0", "model", Request(messages)),
        Request(Messages([Message("user", "hi")])).digest,
    )
    messages.then(Message("assistant", "yes"))
    assert entry.digest == expected
