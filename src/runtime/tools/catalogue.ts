/** The catalogue: finds the tools that match a few words, among any number. Also an embedder that keeps its vectors in a file. */
import { createHash } from 'node:crypto'
import { runInNewContext } from 'node:vm'
import Database from 'libsql'
import type { ToolDefinition } from '../chat/message.js'
import { invariant, KvfoldError } from '../core/errors.js'
import { cosine } from '../core/vectors.js'

/** Makes embedding vectors of texts. Each vector has length 1. */
export interface ToolEmbedder {
  readonly name: string
  embed(texts: readonly string[], signal?: AbortSignal): Promise<readonly Float32Array[]>
}

/** How a search ranks tools. `bm25`: by words. `embeddings`: by meaning. `fused`: both, joined by reciprocal rank fusion. */
export const rankings = ['bm25', 'embeddings', 'fused'] as const
export type SearchRanking = (typeof rankings)[number]

export interface CatalogueOptions {
  /** An SQLite file for this catalogue alone. The file must not contain a catalogue yet. Default: in memory. */
  readonly path?: string
  /** The embedding model for searches by meaning. Without one, tools are found only by words (BM25). */
  readonly embedder?: ToolEmbedder
  /** Called after each batch with the number of tools embedded so far and the number of all tools. */
  readonly onEmbedded?: (done: number, total: number) => void
  readonly signal?: AbortSignal
}

/** How many of the best tools of each ranking are fused. Lower ranks carry no information. */
const DEPTH = 50
/** The constant of reciprocal rank fusion. It keeps the first ranks of one list from deciding alone (Cormack and others, 2009). */
const FUSION = 60
/** How many texts one call to the embedding model gets. */
const BATCH = 64
/** BM25 weights of a match in a tool's name, its description and its arguments. */
const WEIGHTS = [4, 2, 1] as const

/** The time limit for a regular expression from a client or a model, in milliseconds. */
const PATIENCE = 250
/** The code of the regular-expression search. It runs in a VM context, because only there a timeout can stop it. */
const FITTING = 'texts.flatMap((list) => list.flatMap((text, place) => (new RegExp(source, "i").test(text) ? [place] : [])))'

export class Catalogue {
  readonly #byName = new Map<string, ToolDefinition>()
  readonly #names: string[] = []
  readonly #search: Database.Statement
  #vectors: readonly Float32Array[] | null = null

  private constructor(
    private readonly database: Database.Database,
    private readonly embedder: ToolEmbedder | null,
  ) {
    database.exec("CREATE VIRTUAL TABLE tools USING fts5(name, description, arguments, content='', tokenize='porter unicode61')")
    this.#search = database.prepare(
      `SELECT rowid FROM tools WHERE tools MATCH ? ORDER BY bm25(tools, ${WEIGHTS.join(', ')}), rowid LIMIT ?`,
    )
  }

  /** Fills a new catalogue. @throws KvfoldError tool/bad-arguments when two tools have the same name; what the embedder throws */
  static async of(tools: readonly ToolDefinition[], options: CatalogueOptions = {}): Promise<Catalogue> {
    const { path = ':memory:', embedder, onEmbedded, signal } = options
    const catalogue = new Catalogue(new Database(path), embedder ?? null)
    catalogue.#fill(tools)
    if (embedder !== undefined) {
      const vectors: Float32Array[] = []
      for (let from = 0; from < tools.length; from += BATCH) {
        vectors.push(...(await embedder.embed(tools.slice(from, from + BATCH).map(textOf), signal)))
        onEmbedded?.(vectors.length, tools.length)
      }
      invariant(vectors.length === tools.length, `${embedder.name} made ${vectors.length} vectors of ${tools.length} tools.`)
      catalogue.#vectors = vectors
    }
    return catalogue
  }

  get size(): number {
    return this.#names.length
  }

  /** The rankings that `search` supports. Without an embedder that is only `bm25`. */
  get rankings(): readonly SearchRanking[] {
    return this.#vectors === null ? ['bm25'] : rankings
  }

  get(name: string): ToolDefinition | null {
    return this.#byName.get(name) ?? null
  }

  /**
   * Returns the `k` best tools for the words, best first. There are fewer if fewer match. Default ranking: `fused`, or `bm25` without an
   * embedder.
   */
  async search(
    words: string,
    k: number,
    ranking = this.rankings.at(-1)!,
    signal?: AbortSignal,
  ): Promise<readonly ToolDefinition[]> {
    const places = await this.#ranked(words, k, ranking, signal)
    return places.slice(0, k).map((place) => this.#byName.get(this.#names[place]!)!)
  }

  /**
   * Returns up to `k` tools that match the regular expression, ignoring case. Matches in a name come before matches in a description or
   * arguments. If the pattern is invalid or too slow, returns a sentence for the model.
   */
  matching(
    pattern: string,
    k: number,
  ): { readonly ok: true; readonly tools: readonly ToolDefinition[] } | { readonly ok: false; readonly message: string } {
    const source = pattern.replace(/^\(\?i\)/, '')
    try {
      new RegExp(source, 'i')
    } catch {
      return { ok: false, message: `${JSON.stringify(pattern)} is no regular expression. Write it again.` }
    }
    const tools = [...this.#byName.values()]
    const texts = [tools.map(({ name }) => name), tools.map((tool) => `${tool.description} ${argumentsOf(tool)}`)]
    try {
      const places = runInNewContext(FITTING, { source, texts }, { timeout: PATIENCE }) as readonly number[]
      return { ok: true, tools: [...new Set(places)].slice(0, k).map((place) => tools[place]!) }
    } catch {
      return { ok: false, message: `${JSON.stringify(pattern)} takes too long. Write it more simply.` }
    }
  }

  close(): void {
    this.database.close()
  }

  #fill(tools: readonly ToolDefinition[]): void {
    const insert = this.database.prepare('INSERT INTO tools (rowid, name, description, arguments) VALUES (?, ?, ?, ?)')
    this.database.exec('BEGIN')
    for (const tool of tools) {
      if (this.#byName.has(tool.name))
        throw new KvfoldError(
          'tool/bad-arguments',
          `The catalogue has two tools called ${tool.name}, and a call cannot tell them apart; rename one of them.`,
        )
      insert.run(this.#names.length, wordsOf(tool.name), tool.description, argumentsOf(tool))
      this.#byName.set(tool.name, tool)
      this.#names.push(tool.name)
    }
    this.database.exec('COMMIT')
  }

  async #ranked(words: string, k: number, ranking: SearchRanking, signal?: AbortSignal): Promise<readonly number[]> {
    if (ranking === 'bm25') return this.#byWords(words, k)
    if (ranking === 'embeddings') return this.#byMeaning(words, k, signal)
    const depth = Math.max(k, DEPTH)
    const lists = [this.#byWords(words, depth), await this.#byMeaning(words, depth, signal)]
    const scores = new Map<number, number>()
    for (const list of lists) list.forEach((place, rank) => scores.set(place, (scores.get(place) ?? 0) + 1 / (FUSION + rank + 1)))
    return [...scores].sort((one, other) => other[1] - one[1] || one[0] - other[0]).map(([place]) => place)
  }

  #byWords(words: string, k: number): readonly number[] {
    const terms = [
      ...new Set(
        wordsOf(words)
          .toLowerCase()
          .match(/[\p{L}\p{N}]+/gu),
      ),
    ]
    if (terms.length === 0) return []
    // Each word is quoted, so that SQLite's query language reads none as an operator.
    const query = terms.map((term) => `"${term}"`).join(' OR ')
    return (this.#search.all(query, k) as { readonly rowid: number }[]).map(({ rowid }) => rowid)
  }

  async #byMeaning(words: string, k: number, signal?: AbortSignal): Promise<readonly number[]> {
    if (this.embedder === null || this.#vectors === null)
      throw new KvfoldError(
        'tool/bad-arguments',
        'The catalogue has no embedder, so it can only rank by BM25; make it with an embedder, or ask for the ranking bm25.',
      )
    const [wanted] = await this.embedder.embed([wordsOf(words)], signal)
    invariant(wanted !== undefined, `${this.embedder.name} made no vector.`)
    const likeness = this.#vectors.map((vector, place) => ({ place, score: cosine(vector, wanted) }))
    likeness.sort((one, other) => other.score - one.score || one.place - other.place)
    return likeness.slice(0, k).map(({ place }) => place)
  }
}

/** An embedder that keeps its vectors in an SQLite file. It embeds no text twice, and an interrupted run can continue. */
export class KeptVectors implements ToolEmbedder {
  readonly name: string
  readonly #database: Database.Database

  /** @param path a file for this embedder alone; created if it does not exist */
  constructor(
    private readonly embedder: ToolEmbedder,
    path: string,
  ) {
    this.name = embedder.name
    this.#database = new Database(path)
    this.#database.pragma('busy_timeout = 10000')
    this.#database.exec('CREATE TABLE IF NOT EXISTS vectors (text TEXT PRIMARY KEY, vector BLOB NOT NULL) WITHOUT ROWID')
  }

  /** Embeds texts. New vectors are saved before it returns. @throws KvfoldError what the embedder throws */
  async embed(texts: readonly string[], signal?: AbortSignal): Promise<readonly Float32Array[]> {
    const known = this.#database.prepare('SELECT vector FROM vectors WHERE text = ?')
    const keys = texts.map((text) => createHash('sha256').update(text).digest('hex'))
    const vectors = keys.map((key) => (known.get(key) as { readonly vector: Buffer } | undefined)?.vector).map(numbersOf)
    const missing = vectors.flatMap((vector, place) => (vector === null ? [place] : []))
    if (missing.length === 0) return vectors as Float32Array[]
    const made = await this.embedder.embed(
      missing.map((place) => texts[place]!),
      signal,
    )
    invariant(made.length === missing.length, `${this.name} made ${made.length} vectors of ${missing.length} texts.`)
    const keep = this.#database.prepare('INSERT OR REPLACE INTO vectors (text, vector) VALUES (?, ?)')
    this.#database
      .transaction(() => {
        missing.forEach((place, at) => {
          const { buffer, byteOffset, byteLength } = (vectors[place] = made[at]!)
          keep.run(keys[place]!, Buffer.from(buffer, byteOffset, byteLength))
        })
      })
      .immediate()
    return vectors as Float32Array[]
  }

  /** Closes the file, but not the embedder that it wraps. */
  close(): void {
    this.#database.close()
  }
}

/** Copies the bytes: a buffer from SQLite may begin at an address that is not aligned for floats. */
function numbersOf(bytes: Buffer | undefined): Float32Array | null {
  return bytes === undefined ? null : new Float32Array(Uint8Array.from(bytes).buffer)
}

/** Splits a name into words: `get_stockPrice` becomes `get stock Price`. */
export const wordsOf = (name: string): string => name.replace(/(\p{Ll}|\p{N})(\p{Lu})/gu, '$1 $2').replace(/[_./:-]+/g, ' ')

/** Returns the text that is embedded for a tool. */
const textOf = (tool: ToolDefinition): string => `${wordsOf(tool.name)}: ${tool.description}`

/** Returns the names and descriptions of a tool's arguments. The rest of the schema is ignored. */
function argumentsOf({ parameters }: ToolDefinition): string {
  const { properties } = parameters
  if (typeof properties !== 'object' || properties === null) return ''
  return Object.entries(properties as Record<string, { readonly description?: unknown } | null>)
    .map(([name, about]) => `${wordsOf(name)} ${typeof about?.description === 'string' ? about.description : ''}`)
    .join(' ')
}
