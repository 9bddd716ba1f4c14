"""Questions that people ask, from trackers and threads, each with the one section that answers it.

A section answers if it has the words that an answer cannot do without: the option, the command, the state.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.docs.pages import sections_of


class Question(NamedTuple):
    """A question, and the section that answers it.

    Attributes:
        asked: the question.
        where: a place where it was asked, or one like it; empty: none is known.
        page: the page that answers it.
        heading: of the section that answers it.
        words: words of the answer.
    """

    asked: str
    where: str
    page: str
    heading: str
    words: str


WHICH = "docs/howto/which-one.md"
OPERATE = "docs/howto/operate.md"
REDIS = "docs/howto/redis.md"
RUN_ONCE = "docs/reference/run-once.md"
OPTIONS = "docs/reference/options.md"

QUESTIONS = [
    Question(
        "How do I limit how many tasks of one type run at once, over all workers?",
        "Celery (Django) Rate limiting, a thread on newbe.dev",
        WHICH, "Side by side", "limit=2 / over all workers",
    ),
    Question(
        "How do I run a task for one user at a time, without dropping any?",
        "celery/celery task cookbook",
        WHICH, "One at a time, but all of them", "limit=1, key= / None is dropped",
    ),
    Question(
        "How do I keep beat from starting a task while the last run still goes on?",
        "celery/django-celery-beat#331",
        WHICH, "A periodic task must not overlap", "singleton=True / is skipped / INFO",
    ),
    Question(
        "Two beats run for redundancy: how do I start each task once?",
        "celery/celery#251",
        WHICH, "A periodic task must not overlap", "Two beats / remember",
    ),
    Question(
        "How do I debounce a task, so that only the last call runs?",
        "cameronmaske/celery-once#129, rq/django-rq#513",
        WHICH, "Debounce", "keep_last / countdown",
    ),
    Question(
        "How do I limit a queue?",
        "celery/celery#5732",
        WHICH, "A limit for a queue", "the same `Limit` / task_routes",
    ),
    Question(
        "How do I allow each user so many exports an hour?",
        "dimagi/open-chat-studio#2291",
        WHICH, "So many for each user in an hour", 'rate="30/h" / key="user_id" / count + burst',
    ),
    Question(
        "How do I drop a task that waits for too long?",
        "",
        WHICH, "Wait at most so long", "start_deadline=60 / REVOKED / expires",
    ),
    Question(
        "How do I give a customer of a larger plan a larger limit?",
        "",
        WHICH, "Another number for each plan", "cost= / .override(",
    ),
    Question(
        "Why do my high-priority tasks wait behind the others?",
        "celery/celery#4028, celery/celery#8025",
        WHICH, "Urgent tasks first: priority", "ignores it / limit=[bulk, gpu]",
    ),
    Question(
        "How much memory do 100 000 waiting tasks take?",
        "mhenrixon/sidekiq-unique-jobs#821",
        WHICH, "Memory of parked tasks", "100 000 / MB / benchmarks bytes",
    ),
    Question(
        "How do I run a periodic task once a day, whatever happens?",
        "celery/celery#7577",
        RUN_ONCE, "Once a day", "unique_on / every second day",
    ),
    Question(
        "A second call should return the result of the first: how?",
        "cameronmaske/celery-once#110",
        RUN_ONCE, "What happens to a duplicate", "return_existing / AsyncResult",
    ),
    Question(
        "The lock of a task is stuck: how do I see who has it, and clear it?",
        "steinitzu/celery-singleton#29",
        RUN_ONCE, "How long a lock lasts", "locked_by / unlock",
    ),
    Question(
        "The lock stays after the worker was killed: what now?",
        "cameronmaske/celery-once#147, steinitzu/celery-singleton#40",
        OPERATE, "A dead worker", "throttle_lease / No lock has to be cleared / unlock",
    ),
    Question(
        "Why does my task not start, and how many wait?",
        "sidekiq/sidekiq#5242",
        OPERATE, "Questions and commands", "explain TASK_ID / how many tasks wait",
    ),
    Question(
        "How do I cancel the tasks that wait?",
        "celery/celery#5760",
        OPERATE, "Questions and commands", "Cancel the parked tasks / drop / revoke()",
    ),
    Question(
        "Do I have to drain the queues before a deploy?",
        "unicef/hope#6382",
        OPERATE, "Rolling releases", "deploy / Nothing has to be drained",
    ),
    Question(
        "How do I scale workers on Kubernetes by the tasks that wait?",
        "mitodl/ol-infrastructure#5598, celery/Celery-Kubernetes-Operator#6",
        "docs/howto/autoscaling.md", "Kubernetes: KEDA and Prometheus", "ScaledObject / celery_throttle_runnable_tasks",
    ),
    Question(
        "rate_limit is for each worker: how do I get a rate over all?",
        "celery/celery#5732, celery/celery#4614",
        "docs/howto/switch.md", "Celery's `rate_limit`", 'each worker alone / rate="100/m"',
    ),
    Question(
        "An API answers 429 with Retry-After: how do I stop all workers?",
        "Bogdanp/dramatiq#257",
        "docs/howto/api-429.md", "Raise `RateLimited`", "429 / Retry-After / on any worker",
    ),
    Question(
        "What can I use instead of celery-once?",
        "celery/django-celery-beat#331",
        "docs/about/comparison.md", "Run once", "celery-once / a worker is killed",
    ),
    Question(
        "Does a task that waits take a slot of a worker?",
        "ixti/sidekiq-throttled#88",
        "docs/about/how-it-works.md", "A task's way", "takes no slot",
    ),
    Question(
        "Do chords work if their tasks are limited?",
        "",
        "docs/about/how-it-works.md", "Chords, chains and groups", "its chord waits / the chord fails",
    ),
    Question(
        "A task with a long ETA runs twice after the visibility timeout: does it here?",
        "celery/celery#2599, celery/kombu#337",
        "docs/about/guarantees.md", "ETA, `countdown` and the visibility timeout", "visibility_timeout / not run twice",
    ),
    Question(
        "What happens while Redis is down?",
        "",
        "docs/about/guarantees.md", "What dies", "Redis is away / throttle_on_store_error",
    ),
    Question(
        "Does it work with SQS?",
        "celery/celery#3197, celery/celery#5760",
        "docs/reference/versions.md", "SQS and other brokers", "SQS / revoke() / was never tried",
    ),
    Question(
        "Does it work with ElastiCache, MemoryDB, Upstash, Azure?",
        "Bogdanp/dramatiq#754",
        REDIS, "Managed Redis", "ElastiCache / MemoryDB / Upstash / Azure / Serverless / CONFIG",
    ),
    Question(
        "May several services share a limit?",
        "",
        REDIS, "Several services on one store", "share their limits",
    ),
    Question(
        "The task looks for a row that Django has not committed: what do I write?",
        "celery/celery#8491, celery/celery#8976",
        "docs/howto/web-frameworks.md", "Django", "delay_on_commit / ATOMIC_REQUESTS",
    ),
    Question(
        "How do I run my tests without Redis?",
        "celery/celery#9126",
        "docs/tutorial/in-tests.md", "Without a worker", "task_always_eager / no Redis is needed",
    ),
    Question(
        "How do I charge a customer exactly once?",
        "celery/celery#4400",
        "docs/howto/payments.md", "The fencing token", "fence < :fence / idempotency key",
    ),
    Question(
        "One customer sends thousands of tasks: how do the others get their turn?",
        "ixti/sidekiq-throttled#94",
        "docs/howto/tenants.md", "Turns", "fair_by= / weights",
    ),
    Question(
        "How do I change a limit without a deploy?",
        "temporalio/temporal#3288",
        "docs/howto/change-at-run-time.md", "Change it", "throttle set / .override( / No worker has to be restarted",
    ),
    Question(
        "Admins edit the limit of a customer in a table: how do workers learn of it?",
        "",
        "docs/howto/limits-in-a-database.md", "When a row is saved", "delay_on_commit / post_save / after the commit",
    ),
    Question(
        "delay() in an async view raises SynchronousOnlyOperation: what do I write?",
        "",
        "docs/howto/async-views.md", "Or publish in a thread", "sync_to_async / asyncio.to_thread",
    ),
    Question(
        "A view and a task call the same function: where is the permit taken?",
        "",
        "docs/howto/permits-outside-tasks.md", "Code that tasks and views share", "take it once / by its name",
    ),
    Question(
        "How do I move from a Redis lock of my own, while old workers still run?",
        "",
        "docs/howto/switch.md", "A lock class of your own, in the body", "both releases / old worker is left",
    ),
    Question(
        "May I use a task id again?",
        "",
        RUN_ONCE, "Task ids", "Each publication runs / logs it at INFO / is a duplicate",
    ),
    Question(
        "With rate='10/s' the API saw more in a second: why?",
        "",
        "docs/howto/api-429.md", "Stay below the rate", "Leave a margin / burst=1 / tox -e bench -- rate",
    ),
    Question(
        "A message published during a deploy is gone: where is it?",
        "celery/celery#4354, celery/celery#7950",
        "docs/reference/versions.md", "Defects of Celery that remain", "BRPOP / warm shutdown / lost",
    ),
    Question(
        "What happens if the store cannot write its append-only file?",
        "",
        REDIS, "One server", "MISCONF / aof_last_write_status:err",
    ),
    Question(
        "How do I refuse calls while too many wait?",
        "",
        OPTIONS, "`max_parked`", "LimitExceeded / max_parked=1000",
    ),
    Question(
        "How do I give each machine with a GPU its own limit?",
        "",
        "docs/howto/hosts.md", "Permits on each host", 'per="host"',
    ),
    Question(
        "How does a web handler take part in the limit?",
        "",
        "docs/howto/permits-outside-tasks.md", "Take a permit", "acquire(timeout= / acquire_async",
    ),
    Question(
        "Does it work with async def tasks?",
        "celery/celery#6552",
        "docs/howto/web-frameworks.md", "async def tasks", "NotAwaited / asyncio.run",
    ),
]  # fmt: skip


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.asked)
def test_one_section_answers_a_question(question: Question) -> None:
    sections = sections_of(question.page)
    assert question.heading in sections
    missing = [word for word in question.words.split(" / ") if word not in sections[question.heading]]
    assert missing == []


def test_a_section_ends_with_the_next_heading_of_its_level() -> None:
    sections = sections_of(WHICH)
    assert "fair_by" in sections["Urgent tasks first: priority"]
    assert "fair_by" not in sections["Memory of parked tasks"]
    assert "fair_by" in sections["Which one do I need?"]


def test_the_words_that_people_search_for_are_in_headings_or_first_lines() -> None:
    words = {
        "kubernetes": "docs/howto/autoscaling.md",
        "deploy": OPERATE,
        "dead worker": OPERATE,
        "tenant": "docs/howto/tenants.md",
        "429": "docs/howto/api-429.md",
        "periodic": WHICH,
        "priority": WHICH,
        "plan": WHICH,
        "debounce": WHICH,
        "django": "docs/howto/web-frameworks.md",
        "celery-once": "docs/howto/switch.md",
        "sqs": "docs/reference/versions.md",
        "managed redis": REDIS,
    }
    for word, page in words.items():
        sections = sections_of(page)
        seen = [f"{title}\n{chr(10).join(text.strip().splitlines()[:2])}" for title, text in sections.items()]
        assert any(word in each.lower() for each in seen), (word, page)
