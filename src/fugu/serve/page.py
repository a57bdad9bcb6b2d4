"""The page for people: what is served, and how to ask it."""

from __future__ import annotations

import json
from html import escape

from fugu.export.player import LoadedPolicy
from fugu.serve.config import TOKEN_VARIABLE
from fugu.serve.schema import MOST_EXAMPLE, Schema, example

ADDRESS = "http://ADDRESS"  # to be replaced by that of the server

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>body{{font:16px/1.5 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem;
color:#223;background:#fff}}pre{{background:#f3f5f8;padding:1rem;overflow:auto;border-radius:.5rem;
font-size:.85rem}}a{{color:#06c}}</style></head><body>
<h1>{title}</h1>
<p>{facts}</p>
<h2>Ask it</h2>
<pre>{curl}</pre>
<p><code>POST /act</code> takes an <code>observation</code>, or a list of <code>observations</code>,
and gives <code>action</code>, <code>value</code> and <code>state</code>. Hand the state back with
the next observation of an episode; without one, an episode begins.</p>
<p><a href="schema">/schema</a> <a href="health">/health</a> <a href="metrics">/metrics</a></p>
<h2>Schema</h2>
<pre>{schema}</pre>
</body></html>
"""


def make_page(title: str, policy: LoadedPolicy, schema: Schema, needs_token: bool) -> str:
    """The page, as HTML."""
    facts = policy.facts
    memory = f"a state of {facts.state_size} numbers" if facts.state_size else "no memory"
    return _PAGE.format(
        title=escape(title),
        facts=escape(f"Engine {policy.name or 'unknown'}, {memory}."),
        curl=escape(make_curl(policy, needs_token)),
        schema=escape(json.dumps(schema, indent=2)),
    )


def make_curl(policy: LoadedPolicy, needs_token: bool) -> str:
    """A command that asks it."""
    sent = json.dumps({"observation": example(policy.facts.observation)})
    data = f"'{sent}'" if len(sent) <= MOST_EXAMPLE and "'" not in sent else "@request.json"
    token = f" -H 'Authorization: Bearer '\"${TOKEN_VARIABLE}\"" if needs_token else ""
    return f"curl {ADDRESS}/act{token} -H 'Content-Type: application/json' -d {data}"
