/** Reads the authors' own prompts, which we may not ship, from the user's checkout of their repository. */
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { KvfoldError } from '../../runtime/core/errors.js'
import type { PiUpdate } from '../pi-llm.js'

/** Writes the three parts of a PI-LLM prompt. In the prompt, blank lines separate them. */
export type PiPromptWriter = (
  keys: readonly string[],
  shown: readonly PiUpdate[],
) => [framing: string, stream: string, question: string]

/**
 * Reads PI-LLM's prompt from the authors' program, in its default form: a colon between key and value, and a question for the current
 * values, with one sentence per key. Source: core/pi_flow_upgrade.py of Unable-to-Forget.
 */
export async function originalPiLlm(checkout: string): Promise<PiPromptWriter> {
  const source = await PythonSource.open(checkout, 'core/pi_flow_upgrade.py')
  const framing = source.text(/^ *instruction = /mu) + source.text(/^ *instruction \+= /mu)
  const stream = source.text(/^ *text_key_item_pairs = /mu)
  const question =
    source.text(/^ *question = /mu) +
    source.text(/startswith\("redundant"\):\s+question \+= /u) +
    source.text(/answer_format == "verbal":\s+question \+= /u)
  return (keys, shown) => {
    const fill = source.filler({
      n_actually_tracked_keys: String(keys.length),
      str_actually_tracked_keys: keys.join(', '),
      probe_target: 'current',
      stream_key_item_pairs: shown.map(({ key, value }) => `${key}: ${value}; `).join(''),
    })
    return [fill(framing), fill(stream), fill(question)]
  }
}

/** Reads BABILong's prompt for each task. The caller fills in `{context}` and `{question}`. Source: babilong/prompts.py. */
export async function originalBabilong(checkout: string, tasks: readonly string[]): Promise<ReadonlyMap<string, string>> {
  const source = await PythonSource.open(checkout, 'babilong/prompts.py')
  const template = `${source.text(/^TASK_TEMPLATE = /mu)}\n\n${source.text(/^USER_TEMPLATE = /mu)}`
  return new Map(
    tasks.map((task) => {
      const part = (name: string) => source.text(new RegExp(`'${task}': \\{[^}]*?'${name}':\\s*`, 'u'), IN_BRACKETS)
      const fill = source.filler({
        instruction: part('instruction'),
        examples: part('examples'),
        post_prompt: part('post_prompt'),
        context: '{context}',
        question: '{question}',
      })
      return [task, fill(template)] as const
    }),
  )
}

/** Reads LongBench v2's prompt. The caller replaces `$DOC$`, `$Q$`, and `$C_A$` to `$C_D$`. Source: prompts/0shot.txt. */
export const originalLongBench = (checkout: string): Promise<string> => contentOf(checkout, 'prompts/0shot.txt')

export interface NeedlesPrompts {
  readonly ask: (text: string, person: string) => string
  /** Ways to say in a sentence how the elder is related to the younger. */
  readonly kinships: readonly ((elder: string, younger: string, relation: string) => string)[]
}

/**
 * Reads NeedleBench's English prompt for multi-needle reasoning, with the question at the end, and its sentences of kinship. Source:
 * opencompass/datasets/needlebench_v2 of opencompass.
 */
export async function originalNeedles(checkout: string): Promise<NeedlesPrompts> {
  const folder = 'opencompass/datasets/needlebench_v2'
  const source = await PythonSource.open(checkout, `${folder}/multi.py`)
  const names = await PythonSource.open(checkout, `${folder}/atc.py`)
  const question = source.text(/language == 'English':\s+retrieval_question = /u)
  const prompt = source.text(/language == 'English':\s+if quesiton_position == 'End':\s+prompt = /u)
  const prompts: NeedlesPrompts = {
    ask: (context, person) => {
      const retrieval = source.filler({ last_person: person })(question)
      return source.filler({ context, retrieval_question: retrieval, last_person: person })(prompt)
    },
    kinships: names
      .texts(/^relationship_templates_en = \[/mu)
      .map((said) => (elder, younger, relation) => names.filler({ A: elder, B: younger, relationship: relation })(said)),
  }
  prompts.ask('', '')
  for (const said of prompts.kinships) said('', '', '')
  return prompts
}

export interface FramesPrompts {
  readonly ask: (articles: string, question: string) => string
  readonly judge: (question: string, answer: string, truth: string) => string
}

/**
 * Reads two prompts for FRAMES: the question to the model, with articles in place of links, and the question to the judge. Source:
 * scripts/eval_frames_benchmark.py of optillm.
 */
export async function originalFrames(checkout: string): Promise<FramesPrompts> {
  const source = await PythonSource.open(checkout, 'scripts/eval_frames_benchmark.py')
  const asked = source.text(/^def generate_llm_prompt\([^\n]*\n\s*return /mu)
  const judged = source.text(/^ *evaluation_prompt = /mu)
  const prompts: FramesPrompts = {
    ask: (articles, question) => source.filler({ wiki_links: articles, prompt: question })(asked),
    judge: (question, answer, truth) => source.filler({ question, llm_response: answer, ground_truth: truth })(judged),
  }
  prompts.ask('', '')
  prompts.judge('', '', '')
  return prompts
}

/** Reads the string literals of a Python file, without running its code. */
class PythonSource {
  private constructor(
    private readonly where: string,
    private readonly code: string,
  ) {}

  static async open(checkout: string, file: string): Promise<PythonSource> {
    return new PythonSource(join(checkout, file), await contentOf(checkout, file))
  }

  /**
   * Returns the string behind the first match of `before`. Adjacent string literals are joined, as in Python: on one line or, with
   * IN_BRACKETS, over several lines.
   * @throws KvfoldError eval/bad-data when no string follows
   */
  text(before: RegExp, literals = ON_A_LINE): string {
    const found = before.exec(this.code)
    let at = found === null ? -1 : found.index + found[0].length
    let text: string | null = null
    while (at >= 0) {
      literals.lastIndex = at
      const literal = literals.exec(this.code)
      if (literal === null) break
      text = (text ?? '') + unescaped(literal[1] ?? literal[2] ?? literal[3] ?? literal[4] ?? '')
      at = literals.lastIndex
    }
    if (text === null) throw this.#other(`has no text after ${before.source}`)
    return text
  }

  /**
   * Returns the strings of the list that begins with the first match of `before`. Some of them may be in brackets.
   * @throws KvfoldError eval/bad-data when there are none
   */
  texts(before: RegExp): string[] {
    const inside = new RegExp(`${before.source}((?:\\s|[(),]|${ON_A_LINE.source})*)\\]`, before.flags).exec(this.code)?.[1]
    const items = inside?.match(new RegExp(`(?:${ON_A_LINE.source}\\s*)+`, 'gu')) ?? []
    if (items.length === 0) throw this.#other(`has no texts after ${before.source}`)
    return items.map((item) => new PythonSource(this.where, item).text(/^/u, IN_BRACKETS))
  }

  /**
   * Returns a function that replaces each name in braces by its value, and doubled braces by single ones. For a name without a value, it
   * throws KvfoldError eval/bad-data.
   */
  filler(values: Readonly<Record<string, string>>): (text: string) => string {
    return (text) =>
      text.replace(/\{\{|\}\}|\{(\w+)\}/gu, (found, name: string | undefined) => {
        if (name === undefined) return found.charAt(0)
        const value = values[name]
        if (value === undefined) throw this.#other(`uses {${name}}, which kvfold does not know`)
        return value
      })
  }

  #other(why: string): KvfoldError {
    return new KvfoldError(
      'eval/bad-data',
      `${this.where} ${why}; it is not the version of the authors’ program that kvfold knows.`,
    )
  }
}

const ON_A_LINE = /f?(?:"""((?:[^\\]|\\[^])*?)"""|'''((?:[^\\]|\\[^])*?)'''|"((?:[^"\\\n]|\\.)*)"|'((?:[^'\\\n]|\\.)*)')[ \t]*/uy
const IN_BRACKETS = new RegExp(String.raw`${ON_A_LINE.source}(?:(?:#[^\n]*)?\n\s*)?`, 'uy')

const ESCAPES: Readonly<Record<string, string>> = { n: '\n', t: '\t' }
const unescaped = (literal: string): string => literal.replace(/\\(.)/gu, (_, letter: string) => ESCAPES[letter] ?? letter)

/** Returns the text of a file in the checkout. @throws KvfoldError eval/bad-data when it cannot be read */
async function contentOf(checkout: string, file: string): Promise<string> {
  try {
    return await readFile(join(checkout, file), 'utf8')
  } catch {
    throw new KvfoldError(
      'eval/bad-data',
      `${checkout} has no ${file}; --prompts takes the folder of a checkout of the authors’ repository.`,
    )
  }
}
