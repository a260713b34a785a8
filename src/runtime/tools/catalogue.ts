/** The catalogue of all tools, of any number: finds the tools that match a few words. Also a file that keeps the vectors of texts. */
import { createHash } from 'node:crypto'
import { runInNewContext } from 'node:vm'
import Database from 'libsql'
import type { ToolDefinition } from '../chat/message.js'
import { invariant, KvfoldError } from '../core/errors.js'
import { cosine } from '../core/vectors.js'

/** Makes vectors of texts. Each vector has length 1. */
export interface ToolEmbedder {
  readonly name: string
  embed(texts: readonly string[], signal?: AbortSignal): Promise<readonly Float32Array[]>
}

/** The ways to rank tools: by words, by meaning, or by both rankings joined by reciprocal rank (`fused`). */
export const rankings = ['bm25', 'embeddings', 'fused'] as const
export type SearchRanking = (typeof rankings)[number]

export interface CatalogueOptions {
  /** An SQLite file for this catalogue alone; it must not contain a catalogue yet. Default: in memory. */
  readonly path?: string
  /** Makes the vectors for the search by meaning. Without an embedder, tools are found only by their words (BM25). */
  readonly embedder?: ToolEmbedder
  /** Called after each batch with the number of tools that have vectors, and the number of all tools. */
  readonly onEmbedded?: (done: number, total: number) => void
  readonly signal?: AbortSignal
}

/** How many of the best tools of each ranking are fused. Lower ranks say nothing about a tool. */
const DEPTH = 50
/** The constant of reciprocal rank fusion: it keeps the first ranks of one list from deciding alone (Cormack and others, 2009). */
const FUSION = 60
/** How many texts are embedded in one call. */
const BATCH = 64
/** Weights of a word found in the name, the description and the arguments. */
const WEIGHTS = [4, 2, 1] as const

/** Milliseconds that a regular expression from a client or a model may take. */
const PATIENCE = 250
/** The search by a regular expression. It runs in its own VM context, so that a timeout can stop it. */
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

  /** Fills a new catalogue. @throws KvfoldError tool/bad-arguments for two tools of one name; what the embedder throws */
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

  /** The rankings that `search` supports: only BM25 without an embedder. */
  get rankings(): readonly SearchRanking[] {
    return this.#vectors === null ? ['bm25'] : rankings
  }

  get(name: string): ToolDefinition | null {
    return this.#byName.get(name) ?? null
  }

  /**
   * Returns the `k` tools that match the words best, best first. Returns fewer when fewer match a word. Default ranking: `fused`, or `bm25`
   * without an embedder.
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
   * Returns the first `k` tools that the regular expression matches, matches by name before those by description or arguments. Case is
   * ignored. For an invalid or too slow pattern, returns a sentence for the model.
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
    // Words are quoted, so that none is read as an operator of SQLite's query language.
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

/** An embedder that keeps its vectors in an SQLite file. No text is embedded twice, and an interrupted run can continue. */
export class KeptVectors implements ToolEmbedder {
  readonly name: string
  readonly #database: Database.Database

  /** @param path a file for this embedder alone; it is created when it does not exist */
  constructor(
    private readonly embedder: ToolEmbedder,
    path: string,
  ) {
    this.name = embedder.name
    this.#database = new Database(path)
    this.#database.pragma('busy_timeout = 10000')
    this.#database.exec('CREATE TABLE IF NOT EXISTS vectors (text TEXT PRIMARY KEY, vector BLOB NOT NULL) WITHOUT ROWID')
  }

  /** Embeds texts and saves new vectors at once. @throws KvfoldError what the embedder throws */
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
    this.#database.exec('BEGIN IMMEDIATE')
    missing.forEach((place, at) => {
      const { buffer, byteOffset, byteLength } = (vectors[place] = made[at]!)
      keep.run(keys[place]!, Buffer.from(buffer, byteOffset, byteLength))
    })
    this.#database.exec('COMMIT')
    return vectors as Float32Array[]
  }

  /** Closes the file. The embedder is not closed; its owner does that. */
  close(): void {
    this.#database.close()
  }
}

/** Copies the bytes, because a buffer from the database may begin at an unaligned address. */
function numbersOf(bytes: Buffer | undefined): Float32Array | null {
  return bytes === undefined ? null : new Float32Array(Uint8Array.from(bytes).buffer)
}

/** Splits a name into words, so that `get_stockPrice` matches "get stock price". */
export const wordsOf = (name: string): string => name.replace(/(\p{Ll}|\p{N})(\p{Lu})/gu, '$1 $2').replace(/[_./:-]+/g, ' ')

/** Returns the text of a tool that is embedded. */
const textOf = (tool: ToolDefinition): string => `${wordsOf(tool.name)}: ${tool.description}`

/** Returns the names and descriptions of the arguments; other parts of the schema are ignored. */
function argumentsOf({ parameters }: ToolDefinition): string {
  const { properties } = parameters
  if (typeof properties !== 'object' || properties === null) return ''
  return Object.entries(properties as Record<string, { readonly description?: unknown } | null>)
    .map(([name, about]) => `${wordsOf(name)} ${typeof about?.description === 'string' ? about.description : ''}`)
    .join(' ')
}
