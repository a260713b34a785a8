/**
 * The authors' prompts from a checkout of their programs. The tests write programs of the same form with other words, because we may not
 * ship theirs.
 */
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { openTask } from '../../../src/lab/tasks/open.js'

let checkout: string

beforeEach(() => {
  checkout = mkdtempSync(join(tmpdir(), 'kvfold-checkout-'))
})
afterEach(() => {
  rmSync(checkout, { recursive: true })
})

function write(file: string, content: string): string {
  const path = join(checkout, file)
  mkdirSync(dirname(path), { recursive: true })
  writeFileSync(path, content)
  return path
}

/** Returns the only message of the task's first sample. */
async function prompt(task: string, options: Readonly<Record<string, unknown>>): Promise<string> {
  const opened = await openTask({ task, options } as Parameters<typeof openTask>[0])
  return (await opened.sample(0)).messages[0]!.content
}

describe('PI-LLM', () => {
  const program = String.raw`
def prepare(keys):
    instruction = f"Read what follows."
    instruction += f"The {n_actually_tracked_keys} keys are {str_actually_tracked_keys}. \"Last\" ones count."

    question = f"What is the {probe_target} value of ({str_actually_tracked_keys})? "
    if extra == "succinct":
        question += f"Only say: "
    elif extra.startswith("redundant"):
        question += f"End so: "
    if answer_format == "verbal":
        question += f"'The {probe_target} value of <key> is <value>.'"
        f"This is another statement. "
    text_key_item_pairs = f'It starts here.\n {stream_key_item_pairs}'
`
  const options = { updates: [2], keys: 2, samples: 1, words: '' }

  it('reads like the authors’ program, with their words', async () => {
    write('core/pi_flow_upgrade.py', program)
    const words = write('testing_data/words.json', JSON.stringify({ fish: ['cod', 'eel'], tree: ['oak', 'elm'] }))
    const said = await prompt('pi-llm', { ...options, words, prompts: checkout })
    const [, keys = ''] = /The 2 keys are (.*?)\./u.exec(said) ?? []
    expect(keys.split(', ').sort()).toEqual(['fish', 'tree'])
    const stream = /^It starts here\.\n ((?:\w+: \w+; ){4})$/mu.exec(said)?.[1]
    expect(said).toBe(
      `Read what follows.The 2 keys are ${keys}. "Last" ones count.\n\n` +
        `It starts here.\n ${stream}\n\n` +
        `What is the current value of (${keys})? End so: 'The current value of <key> is <value>.'`,
    )
  })

  it('then differs in fewer points, and lists them', async () => {
    write('core/pi_flow_upgrade.py', program)
    const words = write('testing_data/words.json', JSON.stringify({ fish: ['cod', 'eel'], tree: ['oak', 'elm'] }))
    const { differs } = await openTask({ task: 'pi-llm', options: { ...options, words, prompts: checkout } })
    expect(differs).toEqual([
      'An answer that is empty or speaks of an error counts as wrong; the original leaves such a run out.',
    ])
  })

  it('is refused where the program is missing or of another version', async () => {
    const asked = () => openTask({ task: 'pi-llm', options: { updates: [2], keys: 2, prompts: checkout } })
    await expect(asked()).rejects.toMatchObject({ code: 'eval/bad-data', message: /no core\/pi_flow_upgrade\.py.*--prompts/u })
    write('core/pi_flow_upgrade.py', program.replace('instruction += f"', 'instruction += said("'))
    await expect(asked()).rejects.toMatchObject({ message: /has no text after.*not the version/u })
    write('core/pi_flow_upgrade.py', program.replace('{n_actually_tracked_keys}', '{count}'))
    await expect(asked()).rejects.toMatchObject({ message: /\{count\}, which kvfold does not know/u })
  })
})

it('BABILong has the instruction, examples and answer form of its task', async () => {
  write(
    'babilong/prompts.py',
    String.raw`
TASK_TEMPLATE = '{instruction}\n\n{examples}\n\n{post_prompt}'
USER_TEMPLATE = '<text>\n{context}\n</text>\n\n{question}'
PROMPTS = {
    'qa1': {
        'instruction':
            'Where is who? '
            'Only this text counts.',
        'examples':
            'Ann: here.\n'
            'Bob\'s: there.',
        'post_prompt':
            'One word.'
    },
    'qa2': {
        'instruction': 'Two.',
        'examples': 'None.',
        'post_prompt': 'Two words.'
    },
}
`,
  )
  const data = write('rows.jsonl', JSON.stringify({ input: ' It {question} rains. ', question: 'Where? ', target: 'kitchen' }))
  const said = (task: string) => prompt('babilong', { data, tasks: [task], prompts: checkout })
  expect(await said('qa1')).toBe(
    "Where is who? Only this text counts.\n\nAnn: here.\nBob's: there.\n\nOne word.\n\n<text>\nIt {question} rains.\n</text>\n\nWhere?",
  )
  expect(await said('qa2')).toMatch(/^Two\.\n\nNone\.\n\nTwo words\./u)
  const { differs } = await openTask({ task: 'babilong', options: { data, tasks: ['qa1'], prompts: checkout } })
  expect(differs).toEqual(['Answers may have 128 tokens; the authors’ program stops after 15.'])
})

it('LongBench v2 reads like the authors’ prompt file', async () => {
  write('prompts/0shot.txt', 'Text: $DOC$\nAsked: $Q$\n(A) $C_A$\n(B) $C_B$\n(C) $C_C$\n(D) $C_D$\nSay which.')
  const data = write(
    'data.json',
    JSON.stringify([
      { _id: 'x', difficulty: 'easy', length: 'short', question: ' Which? ', answer: 'B', context: ' It costs $Q$. ', choice_A: 'a', choice_B: 'b', choice_C: 'c', choice_D: 'd' },
    ]),
  ) // prettier-ignore
  expect(await prompt('longbench-v2', { data, prompts: checkout })).toBe(
    'Text: It costs $Q$.\nAsked: Which?\n(A) a\n(B) b\n(C) c\n(D) d\nSay which.',
  )
  await expect(prompt('longbench-v2', { data, prompts: join(checkout, 'nowhere') })).rejects.toMatchObject({
    code: 'eval/bad-data',
  })
})

describe('FRAMES', () => {
  const program = String.raw`
def generate_llm_prompt(prompt: str, wiki_links: List[str]) -> str:
    return f"Read:\n{wiki_links}\n\nAsked: {prompt}\n\n"

def evaluate_response(question: str, llm_response: str, ground_truth: str, model: str):
    evaluation_prompt = f"""#Judge#
Is it "right"? Say {{so}}.
- {question}
- {llm_response}
- {ground_truth}
"Decision:" last."""
    other = 1
`
  const opened = () => {
    const data = write('frames.jsonl', JSON.stringify({ Prompt: 'Who {x}? ', Answer: 'Ann', wiki_links: 'https://a.org/wiki/A', reasoning_types: 'x' })) // prettier-ignore
    write('articles/A.txt', 'Ann {prompt} did.')
    return openTask({ task: 'frames', options: { data, articles: join(checkout, 'articles'), prompts: checkout } })
  }

  it('asks like the published program, and so does its judge', async () => {
    write('scripts/eval_frames_benchmark.py', program)
    const task = await opened()
    const sample = await task.sample(0)
    expect(sample.messages).toEqual([{ role: 'user', content: 'Read:\n# A\n\nAnn {prompt} did.\n\nAsked: Who {x}? \n\n' }])
    expect(sample.question).toBe('Read:\n\n\nAsked: Who {x}? \n\n')
    expect(task.judging!(sample, ' {truth} Ann.\n').prompt).toBe(
      '#Judge#\nIs it "right"? Say {so}.\n- Who {x}? \n- {truth} Ann.\n- Ann\n"Decision:" last.',
    )
    expect(task.differs.join()).not.toMatch(/our own words|stricter/u)
  })

  it.each([
    ['Explanation: so.\nDecision: TRUE', true],
    ['Decision: true \nAnd so on.', true],
    ['Decision: FALSE', false],
    ['Decision: TRUE\nDecision: FALSE', false],
    ['Decision: TRUE: surely', true],
    ['Decision: TRUE.', null],
    ['"Decision:" "TRUE"', null],
    ['**Decision:** TRUE', null],
    ['Text.\n Decision: TRUE', null],
    ['TRUE', null],
  ])('reads %j like the published program', async (said, expected) => {
    write('scripts/eval_frames_benchmark.py', program)
    const task = await opened()
    expect(task.judging!(await task.sample(0), 'Ann').verdict(said)).toBe(expected)
  })

  it('is refused where the program is of another version', async () => {
    write('scripts/eval_frames_benchmark.py', program.replace('{ground_truth}', '{expected}'))
    await expect(opened()).rejects.toMatchObject({ code: 'eval/bad-data', message: /\{expected\}, which kvfold does not know/u })
  })
})

describe('NeedleBench', () => {
  const multi = String.raw`
    if language == 'Chinese':
        retrieval_question = f"Other {last_person}?"
    elif language == 'English':
        retrieval_question = f"Who is first before '{last_person}'?"

            if language == 'Chinese':
                if quesiton_position == 'End':
                    prompt = f'''Other.'''
            elif language == 'English':
                if quesiton_position == 'End':
                    prompt = f'''Read.
<Text>
{context}
</Text>
So: {retrieval_question} For {last_person} say \\boxed{{name}}.

'''
                elif quesiton_position == 'Start':
                    prompt = f'''Other.'''
`
  const atc = String.raw`
relationship_templates_en = [
    "{B}'s {relationship}: {A}.",
    ("{A}, of {B} (the {relationship}), "
     "is known."),
]
relationship_terms_en = ['other']
`
  const opened = () => openTask({ task: 'needles', options: { needles: [4], lengths: [500], samples: 3, prompts: checkout } })

  it('asks and states kinships like its program', async () => {
    write('opencompass/datasets/needlebench_v2/multi.py', multi)
    write('opencompass/datasets/needlebench_v2/atc.py', atc)
    const task = await opened()
    const told = new Set<string>()
    for (let index = 0; index < task.size; index++) {
      const { messages, context, question, truth } = await task.sample(index)
      const { chain } = truth as { chain: string[] }
      const last = chain.at(-1)
      const said = (text: string) =>
        `Read.\n<Text>\n${text}\n</Text>\nSo: Who is first before '${last}'? For ${last} say \\boxed{name}.\n\n`
      expect(messages).toEqual([{ role: 'user', content: said(context) }])
      expect(messages[0]!.content).toHaveLength(2000)
      expect(question).toBe(said(''))
      for (const [at, elder] of chain.slice(0, -1).entries()) {
        const lines = context.split('\n').filter((line) => line.includes(elder) && line.includes(chain[at + 1]!))
        expect(lines).toHaveLength(1)
        told.add(
          lines[0]!
            .replaceAll(elder, 'A')
            .replaceAll(chain[at + 1]!, 'B')
            .replace(/(?<=B's |the )[a-z ]+/u, 'R'),
        )
      }
    }
    expect([...told].sort()).toEqual(['A, of B (the R), is known.', "B's R: A."])
    expect(task.differs.join()).not.toMatch(/phrasings/u)
  })

  it('is refused where the program is of another version', async () => {
    write('opencompass/datasets/needlebench_v2/multi.py', multi)
    write('opencompass/datasets/needlebench_v2/atc.py', atc.replace('[', 'known(['))
    await expect(opened()).rejects.toMatchObject({ code: 'eval/bad-data', message: /has no texts after/u })
  })
})
