/**
 * Routes for embeddings and rankings: `/v1/embeddings`, llama-server's `/embedding`, vLLM's `/pooling`, `/score` and `/classify`, and
 * rankings in the formats of Jina, Cohere, vLLM, llama-server and Text Embeddings Inference.
 */
import { randomUUID } from 'node:crypto'
import { definedFields, isRecord } from '../../core/json.js'
import Type from 'typebox'
import { KvfoldError } from '../../core/errors.js'
import { FieldError, unsupported } from '../problem.js'
import { type App, described, ERRORS, type Ports } from '../routes/route.js'
import { isTokenList, promptStringOf, NoteFields, nullsDownTo, textOf } from './fields.js'
import { ignoredIn, onlyIgnored } from './kvfold-field.js'

const Documents = Type.Array(
  Type.Unsafe<string | { readonly text: string }>({
    type: ['string', 'object'],
    required: ['text'],
    properties: { text: { type: 'string' } },
    description: 'a text, or an object with a text',
  }),
)

const refused = Type.Optional(Type.Unknown({ description: 'refused' }))

/** Fields of ranking APIs that would change the scores. They are refused. */
const NotCarriedOut = {
  ...{ rank_fields: refused, max_chunks_per_doc: refused, max_tokens_per_doc: refused },
  ...{ truncate_prompt_tokens: refused, instruction: refused },
}

const RerankBody = Type.Object({
  model: Type.Optional(Type.String({ maxLength: 1024 })),
  query: Type.String({ minLength: 1 }),
  documents: Type.Optional(Documents),
  texts: Type.Optional(
    Type.Array(Type.String(), { description: 'instead of documents: the answer is a list then, with `score`' }),
  ),
  top_n: Type.Optional(Type.Integer({ minimum: 0, description: 'only the best so many; default: all' })),
  return_documents: Type.Optional(Type.Boolean()),
  return_text: Type.Optional(Type.Boolean({ description: 'with `texts`' })),
  // `raw_scores` has no effect: scores are always the raw output of the model's head.
  raw_scores: Type.Optional(Type.Boolean()),
  truncate: Type.Optional(Type.Boolean()),
  ...NotCarriedOut,
})

const PATHS = ['/v1/rerank', '/v1/reranking', '/v2/rerank']
const MOST_DOCUMENTS = 2048

export function addRerank(app: App, { service, exchange }: Ports): void {
  for (const path of PATHS)
    app.post(
      path,
      {
        schema: {
          ...described('How well documents answer a query, the best first', 'rerank'),
          body: RerankBody,
        },
        preValidation: nullsDownTo(1),
      },
      async (request, reply) => {
        const { body, tenant } = request
        const documents = documentsOf(body)
        refuseOthers(body)
        const asked = { tenant, query: body.query, documents, ...definedFields({ model: body.model }) }
        const { model, scores, tokens } = await exchange(request, reply).aside(
          'rankings',
          (signal) => service.rerank({ ...asked, signal }),
          (answer) => answer.scores.length,
        )
        const best = scores
          .map((score, index) => ({ index, score, text: documents[index]! }))
          .sort((a, b) => b.score - a.score || a.index - b.index)
          .slice(0, body.top_n)
        const ignored = ignoredIn(body, RerankBody)
        if (body.texts !== undefined) {
          const list = best.map(({ index, score, text }) => ({ index, score, ...(body.return_text === true ? { text } : {}) }))
          return withIgnored(list, ignored)
        }
        const results = best.map(({ index, score, text }) => ({
          index,
          relevance_score: score,
          ...(body.return_documents === true ? { document: { text } } : {}),
        }))
        const usage = { prompt_tokens: tokens, total_tokens: tokens }
        return { object: 'list', model, results, usage, ...onlyIgnored(ignored) }
      },
    )
}

function documentsOf({ documents, texts }: Type.Static<typeof RerankBody>): readonly string[] {
  const name = texts === undefined ? 'documents' : 'texts'
  const all = texts ?? documents
  if (all === undefined) throw new FieldError('documents', 'documents is missing; send a list of texts.')
  if (all.length === 0 || all.length > MOST_DOCUMENTS)
    throw new FieldError(name, `${name} has ${all.length} entries; send 1 to ${MOST_DOCUMENTS}.`)
  return all.map((one) => (typeof one === 'string' ? one : one.text))
}

function refuseOthers(body: Type.Static<typeof RerankBody>): void {
  const other = Object.keys(NotCarriedOut).find((name) => body[name as keyof typeof NotCarriedOut] != null)
  if (other !== undefined) throw unsupported(other, `${other} is not carried out here; leave it out.`)
  if (body.raw_scores === false)
    throw unsupported('raw_scores', 'Scores are given as the model gives them; leave raw_scores out.')
  if (body.truncate === true) throw unsupported('truncate', 'Documents are read whole; shorten them, or leave truncate out.')
}

// The routes `/v1/embeddings`, `/embedding` and `/pooling`.

const EmbeddingInput = Type.Unsafe<unknown>({
  type: ['string', 'array', 'object'],
  description:
    'text, token ids, or a list of either; also as llama-server has it: both mixed, {prompt_string}, or {content: [parts]}',
})

const EmbeddingFields = {
  model: Type.Optional(Type.String({ maxLength: 1024 })),
  encoding_format: Type.Optional(Type.Enum(['float', 'base64'])),
  dimensions: Type.Optional(Type.Integer({ minimum: 1, description: 'the first so many numbers, made length 1 again' })),
  user: NoteFields.user,
}

const EmbeddingBody = Type.Object({
  input: Type.Optional(EmbeddingInput),
  content: Type.Optional(
    Type.Unsafe<unknown>({ ...EmbeddingInput, description: 'in place of input: the answer is a list, as llama-server has it' }),
  ),
  ...EmbeddingFields,
})

const PoolingBody = Type.Object({
  input: EmbeddingInput,
  ...EmbeddingFields,
  task: Type.Optional(Type.String({ description: 'only embed, which is the default' })),
})

const MOST_INPUTS = 2048

export function addEmbeddings(app: App, { service, exchange }: Ports): void {
  for (const path of ['/v1/embeddings', '/embedding'])
    app.post(
      path,
      {
        schema: {
          ...(path === '/embedding' ? described('Embeddings (llama-server)', 'llama-server') : described('Embeddings', 'openai')),
          body: EmbeddingBody,
        },
        preValidation: nullsDownTo(1),
      },
      async (request, reply) => {
        const { body, tenant } = request
        const { input, content } = body
        if (input !== undefined && content !== undefined) throw new FieldError('content', 'Give input or content, not both.')
        const inputs = content === undefined ? inputsOf(input, 'input') : inputsOf(content, 'content')
        const asked = { tenant, inputs, ...definedFields({ model: body.model, dimensions: body.dimensions }) }
        const { model, vectors, tokens } = await exchange(request, reply).aside(
          'embeddings',
          (signal) => service.embed({ ...asked, signal }),
          (answer) => answer.vectors.length,
        )
        if (content !== undefined || path === '/embedding') {
          const list = vectors.map((vector, index) => ({ index, embedding: [[...vector]] }))
          return withIgnored(list, ignoredIn(body, EmbeddingBody, body.encoding_format === 'base64' ? ['encoding_format'] : []))
        }
        const data = vectors.map((vector, index) => ({ object: 'embedding', index, embedding: written(vector, body) }))
        return {
          ...{ object: 'list', model, data, usage: { prompt_tokens: tokens, total_tokens: tokens } },
          ...onlyIgnored(ignoredIn(body, EmbeddingBody)),
        }
      },
    )
  app.post(
    '/pooling',
    {
      schema: { ...described('Vectors of texts (vLLM)', 'vllm'), body: PoolingBody },
      preValidation: nullsDownTo(1),
    },
    async (request, reply) => {
      const { body, tenant } = request
      if (body.task !== undefined && body.task !== 'embed')
        throw unsupported(
          'task',
          `task ${JSON.stringify(body.task.slice(0, 40))} is not supported; "embed" gives each text one vector.`,
        )
      const inputs = inputsOf(body.input, 'input')
      const asked = { tenant, inputs, ...definedFields({ model: body.model, dimensions: body.dimensions }) }
      const { model, vectors, tokens } = await exchange(request, reply).aside(
        'embeddings',
        (signal) => service.embed({ ...asked, signal }),
        (answer) => answer.vectors.length,
      )
      const data = vectors.map((vector, index) => ({ index, object: 'pooling', data: written(vector, body) }))
      return { ...listed('pool', model, data, tokens), ...onlyIgnored(ignoredIn(body, PoolingBody)) }
    },
  )
}

/** Reports ignored fields of a request whose answer is a list: in the list's first entry. */
const withIgnored = (list: readonly object[], ignored: readonly string[]): readonly object[] =>
  list.map((each, index) => (index === 0 ? { ...each, ...onlyIgnored(ignored) } : each))

/** Writes a list in vLLM's format. */
const listed = (kind: string, model: string, data: readonly object[], tokens: number): object => ({
  ...{ id: `${kind}-${randomUUID()}`, object: 'list', created: Math.floor(Date.now() / 1000), model, data },
  usage: { prompt_tokens: tokens, total_tokens: tokens, completion_tokens: 0 },
})

const written = (vector: Float32Array, { encoding_format: format }: { readonly encoding_format?: string }): string | number[] =>
  format === 'base64' ? base64(vector) : [...vector]

type EmbedInput = string | readonly (number | string)[]

/** Returns the inputs of an embedding request. @param name name of the field @throws FieldError */
function inputsOf(input: unknown, name: string): readonly EmbedInput[] {
  if (input === undefined) throw new FieldError(name, `${name} is missing.`)
  if (!Array.isArray(input)) return [inputOf(input, name)]
  const list = input as readonly unknown[]
  if (list.length === 0 || list.length > MOST_INPUTS)
    throw new FieldError(name, `${name} has ${list.length} entries; send 1 to ${MOST_INPUTS}.`)
  return isMixed(list) ? [list] : list.map((one, index) => inputOf(one, `${name}[${index}]`))
}

/** Whether the list is one input: it contains token ids. A list of texts alone is several inputs. */
const isMixed = (list: readonly unknown[]): list is readonly (number | string)[] =>
  isTokenList(list.filter((part) => typeof part !== 'string')) && list.some((part) => typeof part === 'number')

/** Returns one input of an embedding request. @throws FieldError */
function inputOf(input: unknown, place: string): EmbedInput {
  if (typeof input === 'string') return input
  if (Array.isArray(input) && isMixed(input as readonly unknown[])) return input as readonly (number | string)[]
  if (isRecord(input) && typeof input['prompt_string'] === 'string') return promptStringOf(input['prompt_string'], input, place)
  if (isRecord(input) && Array.isArray(input['content'])) return textIn(input['content'], `${place}.content`)
  throw new FieldError(
    place,
    `${place} must be a string, a list of token ids, or an object with prompt_string or a list of parts as content.`,
  )
}

/** Returns the text of content parts, joined without separators as in llama-server. @throws FieldError */
function textIn(parts: readonly unknown[], place: string): string {
  return parts.map((part, index) => textOf([part], `${place}[${index}]`, { text: 'text' })).join('')
}

const base64 = (vector: Float32Array): string =>
  Buffer.from(vector.buffer, vector.byteOffset, vector.byteLength).toString('base64')

// vLLM's routes `/score` and `/classify`.

const Texts = Type.Optional(
  Type.Unsafe<string | string[]>({
    type: ['string', 'array'],
    items: { type: 'string' },
    maxItems: MOST_DOCUMENTS,
    description: 'a text, or several',
  }),
)

const ScoreBody = Type.Object({
  model: Type.Optional(Type.String({ maxLength: 1024 })),
  text_1: Texts,
  text_2: Texts,
  queries: Texts,
  documents: Texts,
  data_1: Texts,
  data_2: Texts,
})

export function addScore(app: App, { service, exchange }: Ports): void {
  for (const path of ['/score', '/v1/score'])
    app.post(
      path,
      {
        schema: {
          ...described('How well pairs of texts fit together, one score each (vLLM)', 'vllm'),
          body: ScoreBody,
        },
        preValidation: nullsDownTo(1),
      },
      async (request, reply) => {
        const { body, tenant } = request
        const pairs = pairsOf(body)
        const given = definedFields({ model: body.model })
        const { model, scores, tokens } = await exchange(request, reply).aside(
          'rankings',
          (signal) => service.score({ tenant, pairs, signal, ...given }),
          (answer) => answer.scores.length,
        )
        const data = scores.map((score, index) => ({ index, object: 'score', score }))
        return { ...listed('score', model, data, tokens), ...onlyIgnored(ignoredIn(body, ScoreBody)) }
      },
    )
}

/**
 * Returns the pairs of texts to score. One text is paired with each of several; two lists of equal length are paired by index.
 * @throws FieldError
 */
function pairsOf(body: Type.Static<typeof ScoreBody>): readonly (readonly [string, string])[] {
  const names = (
    [
      ['text_1', 'text_2'],
      ['queries', 'documents'],
      ['data_1', 'data_2'],
    ] as const
  ).find((pair) => pair.some((name) => body[name] !== undefined)) ?? ['text_1', 'text_2']
  const [first, second] = names.map((name) => {
    const texts = [body[name] ?? []].flat()
    if (texts.length > 0) return texts
    throw new FieldError(name, `${name} is missing or empty; send a text, or a list of texts.`)
  }) as [string[], string[]]
  if (first.length === 1) return second.map((text) => [first[0]!, text] as const)
  if (first.length === second.length) return first.map((text, index) => [text, second[index]!] as const)
  throw new FieldError(
    names[1],
    `${names[0]} has ${first.length} texts and ${names[1]} has ${second.length}; send one text and several, or two lists of the same length.`,
  )
}

/** Adds `/classify`, which refuses every request: no model that this server runs has a classification head. */
export function addClassify(app: App): void {
  app.post(
    '/classify',
    { schema: { summary: 'Always refused: no model here has a classifier', tags: ['vllm'], response: ERRORS } },
    () => {
      throw new KvfoldError(
        'model/unsupported',
        'No model here has a classifier. /score and /v1/rerank score texts with a reranker (--reranking MODEL).',
      )
    },
  )
}
