import { Template as LibraryTemplate } from '@huggingface/jinja'
import { describe, expect, test } from 'vitest'
import { toValue } from '../../../src/runtime/chat/conversation.js'
import { strftime } from '../../../src/runtime/chat/jinja/filters.js'
import { Template } from '../../../src/runtime/chat/jinja/template.js'
import { KvfoldError } from '../../../src/runtime/core/errors.js'
import { realTemplate } from '../../support/bundle.js'
import { fixedNow, ruledFormat } from '../../support/chat-formats.js'

const options = { bosText: '<s>', eosText: '</s>', now: fixedNow }

function run(source: string, messages: readonly unknown[] = [{ role: 'user', content: ' Hi "you"\n' }]): string {
  const given = messages.map((message, index) => ({ index, value: toValue(message, { field: 'content', message: index }) }))
  return new Template(source, options).render({ messages: given, tools: null, generationPrompt: true }).value
}

/** Templates on which the library and Jinja2 must agree. The library has its own interpreter; we change only the template's text. */
const shared = [
  'plain text {{ bos_token }} {# a comment #} end',
  '{% for m in messages %}{{ loop.index }}/{{ loop.length }}{{ m.role | upper }}:{{ m["content"] | trim }}{% if not loop.last %};{% endif %}{% endfor %}',
  '{% set ns = namespace(a="x", n=1) %}{% for m in messages %}{% set ns.a = ns.a + m.content %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.a }}{{ ns.n }}',
  '{% macro show(m, tail="!") %}<{{ m.content }}{{ tail }}>{% endmacro %}{{ show(messages[0]) }}{{ show(messages[-1], tail="?") }}',
  '{{ messages[0].content.strip().split(" ")[-1] }}{{ messages[0].content[1:3] }}{{ messages | length }}',
  '{% filter upper %}{{ messages[0].content }}{% endfilter %}{{ messages[0] | tojson }}{{ messages | tojson(indent=2) }}',
  '{{ "a" if messages[0].role == "user" else "b" }}{{ messages[0].missing is defined }}'.replace(
    '{{ messages[0].missing is defined }}',
    '',
  ),
  '{% for m in messages if m.role == "user" %}{{ m.content }}{% else %}none{% endfor %}{{ messages[0].content | replace("i", "o") }}',
  '{{ messages | selectattr("role", "equalto", "user") | map(attribute="content") | join(", ") }}{{ ["b", "a"] | sort | join }}',
  '{% set block %}  {{ messages[0].content }}{% endset %}[{{ block }}]{{ messages[0].content | indent(2) }}',
]

describe('the library underneath', () => {
  test.each(shared)('%s', (source) => {
    const messages = [
      { role: 'user', content: ' Hi "you"\n and me' },
      { role: 'assistant', content: 'x' },
    ]
    const plain = new LibraryTemplate(source).render({
      messages,
      add_generation_prompt: true,
      bos_token: '<s>',
      eos_token: '</s>',
    })
    expect(run(source, messages)).toBe(plain)
  })
})

describe('features of Jinja2 that the library lacks', () => {
  test.each([
    ['{{ "xxaxx".strip("x") }}{{ "--a".lstrip("-") }}', 'aa'],
    ['{% for i in range(3) %}a{% if i == 1 %}{% continue %}{% endif %}b{% endfor %}', 'abaab'],
    ['{% for i in range(9) %}{{ i }}{% if i == 2 %}{% break %}{% endif %}{% endfor %}', '012'],
    ['{{ true }} {{ none }} {{ 1.0 }} {{ [1, "a", none] }} {{ {"a": "it\'s"} }}', "True None 1.0 [1, 'a', None] {'a': \"it's\"}"],
    ['{% for a, b in [(1, 2)] %}{{ a + b }}{% endfor %}', '3'],
    ['{% set l = [] %}{% set _ = l.append(1) %}{{ l.pop() }}{{ l | length }}', '10'],
    ['{% for c in "ab" %}<{{ c }}>{% endfor %}{% for c in missing %}x{% endfor %}', '<a><b>'],
    ['{{ "%s" if false }}{{ "a" ~ missing ~ 1 }}', 'a1'],
    ['{{ "-" * 3 }}{{ [3, 1] | min }}', '---1'],
    ['{{ strftime_now("%d %b %Y") }}', '02 Jan 2026'],
    ['{% set d = {"items": 1, "get": 2} %}{% for k, v in d.items() %}{{ k }}={{ v }} {% endfor %}', 'items=1 get=2 '],
    ['{% set d = {"keys": 1, "values": 2} %}{{ d.keys() | list }}{{ d.values() | list }}', "['keys', 'values'][1, 2]"],
    ['{% set d = {"get": 1, "items": 2} %}{{ d.get("items") }}{{ d["items"] }}{{ d["get"] }}', '221'],
    ['{{ missing | upper }}{{ missing | title }}{{ missing | string }}{{ missing | length }}', '0'],
    ['{{ [1, "a"] | upper }}{{ none | trim }}{{ true | lower }}', "[1, 'A']Nonetrue"],
    ['{{ ["a"] | replace("a", "b") }}{{ "aXa" | replace(old="a", new="b", count=1) }}', "['b']bXa"],
    ['{{ [1, none, true] | join("|") }}{{ [none, "a"] | map("upper") | join }}', '1|None|TrueNONEA'],
    ['{{ missing in ["a"] }} {{ missing not in ["a"] }} {{ none in [1] }} {{ none in [missing] }}', 'False True False False'],
    ['{{ ["a"] in ["a"] }} {{ ["a"] in [["a"]] }} {{ {"a": [1]} in [{"a": [1]}] }}', 'False True True'],
    ['{{ 1 in [true] }} {{ 1 in [1.0] }} {{ "1" in [1] }}', 'True True False'],
    ['{{ missing in {"a": 1} }} {{ none in {"a": 1} }} {{ "a" in {"a": 1} }}', 'False False True'],
    ['{{ {"a": 1}[missing] is defined }} {{ {"a": 1}[["a"]] is defined }}', 'False False'],
  ])('%s', (source, expected) => {
    expect(run(source)).toBe(expected)
  })
})

test('gpt-oss shows a tool with a parameter named items', () => {
  const { format } = ruledFormat(realTemplate('openai-gpt-oss-120b'))
  const parameters = { type: 'object', properties: { items: { type: 'array', items: { type: 'string' } } } }
  const { text } = format.render({
    messages: [{ role: 'user', content: 'Buy them.' }],
    tools: [{ name: 'buy', description: 'Buys.', parameters }],
  })
  expect(text).toContain('items?: string[]')
})

describe('failures', () => {
  const failure = (source: string): KvfoldError => {
    try {
      run(source)
    } catch (error) {
      if (error instanceof KvfoldError) return error
    }
    throw new Error('it did not fail')
  }

  test('a template that does not parse reports its line', () => {
    const error = failure('one\ntwo {{ messages\nthree {% endfor %}')
    expect(error.code).toBe('chat/template-failed')
    expect(error.message).toMatch(/line [23]/)
  })

  test("a template's own refusal is passed on", () => {
    expect(failure('{{ raise_exception("Only users here") }}').message).toContain('Only users here')
  })

  test('a string and a number are not added', () => {
    expect(failure('{{ "a" + 1 }}').code).toBe('chat/template-failed')
  })
})

test('strftime', () => {
  expect(strftime(fixedNow(), '%Y-%m-%d %H:%M:%S %A %a %B %y %I%p %-d %% %Q')).toBe(
    '2026-01-02 03:04:05 Friday Fri January 26 03AM 2 % %Q',
  )
})
