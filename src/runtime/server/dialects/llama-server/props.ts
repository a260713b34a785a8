/**
 * More routes of llama-server: `/props` and `/slots` describe a model; `/apply-template`, `/tokenize` and `/detokenize` convert messages
 * and text.
 */
import Type from 'typebox'
import { atOnce, inTurns, type Steps } from '../../../core/turns.js'
import { type App, described, type Ports, whileConnected } from '../../routes/route.js'
import { LARGEST_TOKEN, nullsDownTo, translated } from '../fields.js'
import { samplingSettings } from '../sampling-fields.js'
import { chatAsk, ChatBody, type ChatRequest } from '../openai/chat.js'
import { argumentsAhead } from '../tools.js'
import { KvfoldError } from '../../../core/errors.js'
import { definedFields } from '../../../core/json.js'
import type { Ask, Tenant } from '../../ask.js'
import { FieldError } from '../../problem.js'

const NULLS = 5

const Shown = Type.Object({
  model: Type.Optional(Type.String({ maxLength: 1024, description: 'default: the first' })),
  // Values in a query string are strings.
  autoload: Type.Optional(
    Type.Enum(['true', 'false', '1', '0'], {
      description: 'false or 0: nothing is loaded; a named model that is not is an error; without a name nothing is loaded ever',
    }),
  ),
})

const Named = Type.Object({ model: Type.Optional(Type.String({ maxLength: 1024, description: 'default: the first' })) })

export function addProps(app: App, ports: Ports): void {
  const { service, sampling, exchange } = ports
  app.get(
    '/props',
    { config: { acts: true }, schema: { ...described('The model that is served', 'llama-server'), querystring: Shown } },
    async ({ query }, reply) => {
      const asked = service.model(query.model)
      const isNamed = query.model !== undefined
      const isLoading = isNamed && query.autoload !== 'false' && query.autoload !== '0'
      if (isNamed && !isLoading && asked.loaded === null)
        throw new FieldError('model', `${asked.name} is not loaded; leave autoload out to load it.`)
      // Monitoring programs poll this route without a model name. Such a request must not load a model, which might unload another.
      const { name, loaded } = isLoading ? await service.load(query.model, whileConnected(reply)) : asked
      const known = service.facts(name)
      const hasChoice = service.loadsOnDemand || service.models().length > 1
      return {
        // With `role: router`, llama-server's page lets people choose and load models.
        ...(hasChoice && !isNamed ? { role: 'router', models_autoload: true } : {}),
        default_generation_settings: {
          n_ctx: known?.context ?? 0,
          params: known === null ? {} : samplingSettings({ ...known.sampling, ...sampling }),
        },
        total_slots: known?.slots ?? 0,
        model_alias: name,
        model_path: known?.title ?? '',
        model_ftype: known?.numbers?.quantization ?? '',
        // llama-server always sends a string here.
        chat_template: known?.chatTemplate ?? '',
        bos_token: known?.ends?.bos ?? '',
        eos_token: known?.ends?.eos ?? '',
        modalities: { vision: false, audio: false },
        build_info: known === null ? 'kvfold' : `kvfold, llama.cpp ${known.release}`,
        is_sleeping: loaded === null,
      }
    },
  )
  app.get(
    '/slots',
    { schema: { ...described('Steps that may run at once', 'llama-server'), querystring: Named } },
    ({ query }) => {
      const { loaded, running } = service.model(query.model)
      return Array.from({ length: loaded?.slots ?? 0 }, (_, id) => ({
        id,
        n_ctx: loaded?.context,
        is_processing: id < running,
      }))
    },
  )
  app.post(
    '/apply-template',
    {
      schema: { ...described('The prompt that messages become', 'llama-server'), body: ChatBody },
      preValidation: nullsDownTo(NULLS),
      preHandler: argumentsAhead,
    },
    (request, reply) =>
      exchange(request, reply).wait(async (signal) => ({
        prompt: await service.prompt({ ...(await askOf(ports, request.body, request.tenant)), signal }),
      })),
  )
}

const askOf = ({ sampling, unsupportedParts }: Ports, body: ChatRequest, tenant: Tenant): Ask | Promise<Ask> =>
  translated(body, chatAsk(body, tenant, sampling, unsupportedParts))

// The routes `/tokenize` and `/detokenize` of llama-server and vLLM.

const TokenizeBody = Type.Object({
  model: Type.Optional(Type.String({ maxLength: 1024 })),
  content: Type.Optional(Type.String()),
  prompt: Type.Optional(Type.String({ description: 'as content' })),
  messages: Type.Optional(Type.Unsafe<ChatRequest['messages']>(ChatBody.properties.messages)),
  tools: ChatBody.properties.tools,
  chat_template_kwargs: ChatBody.properties.chat_template_kwargs,
  continue_final_message: ChatBody.properties.continue_final_message,
  add_generation_prompt: Type.Optional(
    Type.Boolean({ description: 'whether the prompt ends with the template’s beginning of an answer; default true' }),
  ),
  parse_special: Type.Optional(
    Type.Boolean({ description: 'whether control tokens in content or prompt count; default true; in messages they never do' }),
  ),
  add_special: Type.Optional(
    Type.Boolean({
      description:
        'whether the tokens that the model’s texts begin with are added; default: in prompt they are, in content not; messages begin as the model sees them',
    }),
  ),
  add_special_tokens: Type.Optional(Type.Boolean({ description: 'as add_special, by vLLM’s name' })),
  with_pieces: Type.Optional(Type.Boolean({ description: 'whether each token comes with its text, or its bytes' })),
  return_token_strs: Type.Optional(Type.Boolean({ description: 'whether the tokens’ texts stand beside them, as vLLM has it' })),
})

const TokenizerQuery = Type.Object({ model: Type.Optional(Type.String({ maxLength: 1024 })) })

const DetokenizeBody = Type.Object({
  model: Type.Optional(Type.String({ maxLength: 1024 })),
  tokens: Type.Array(Type.Integer({ minimum: 0, maximum: LARGEST_TOKEN }), { maxItems: 1_000_000 }),
})

/**
 * Returns the prompt tokens of a conversation. As in vLLM, a last assistant message is closed by default, and the model does not continue
 * it.
 * @throws FieldError
 */
async function tokensOfChat(
  ports: Ports,
  body: Type.Static<typeof TokenizeBody>,
  messages: ChatRequest['messages'],
  tenant: Tenant,
  signal: AbortSignal,
): Promise<Int32Array> {
  const { model, tools, chat_template_kwargs, continue_final_message = false, add_generation_prompt: generationPrompt } = body
  if (continue_final_message && generationPrompt === true)
    throw new FieldError(
      'continue_final_message',
      'continue_final_message and add_generation_prompt cannot both be true: an answer goes on, or it begins.',
    )
  const chat = { messages, continue_final_message, ...definedFields({ model, tools, chat_template_kwargs }) }
  return ports.service.promptTokens({ ...(await askOf(ports, chat, tenant)), signal, ...definedFields({ generationPrompt }) })
}

export function addTokens(app: App, ports: Ports): void {
  const { service, exchange } = ports
  app.post(
    '/tokenize',
    {
      schema: { ...described('Text, or a conversation as the model sees it, to tokens', 'tokens'), body: TokenizeBody },
      preValidation: nullsDownTo(NULLS),
      preHandler: argumentsAhead,
    },
    (request, reply) => {
      const { body } = request
      const { messages } = body
      const text = body.content ?? body.prompt
      if (text === undefined && messages === undefined) throw new FieldError('content', 'content is missing.')
      // Defaults: llama-server's for `content`, vLLM's for `prompt`.
      const { parse_special: special = true, add_special_tokens: begins = body.content === undefined } = body
      const { add_special: bos = begins } = body
      return exchange(request, reply).wait(async (signal) => {
        const tokens =
          text === undefined
            ? await tokensOfChat(ports, body, messages!, request.tenant, signal)
            : await service.tokenize(body.model, text, { special, bos, signal })
        const hasPieces = body.with_pieces === true || body.return_token_strs === true
        const pieces = hasPieces ? await service.pieces(body.model, tokens, signal) : null
        const steps = tokenized(tokens, pieces, body, service.model(body.model).loaded?.context)
        return tokens.length <= STEP ? atOnce(steps) : inTurns(steps)
      })
    },
  )
  app.get(
    '/tokenizer_info',
    {
      config: { acts: true },
      schema: {
        ...described('What texts begin and end with', 'tokens'),
        querystring: TokenizerQuery,
      },
    },
    async ({ query }, reply) => {
      const { loaded } = await service.load(query.model, whileConnected(reply))
      const ends = loaded?.ends ?? null
      if (ends === null) throw new KvfoldError('model/unsupported', 'The engine of this model has no vocabulary of its own here.')
      return { tokenizer_class: 'kvfold', bos_token: ends.bos, eos_token: ends.eos }
    },
  )
  app.post(
    '/detokenize',
    {
      schema: { ...described('Tokens to text', 'tokens'), body: DetokenizeBody },
      preValidation: nullsDownTo(1),
    },
    (request, reply) => {
      const { model, tokens } = request.body
      return exchange(request, reply).wait(async (signal) => {
        const content = await service.detokenize(model, tokens, signal)
        return { content, prompt: content }
      })
    },
  )
}

/** Tokens written between two yields to the event loop. */
const STEP = 4096

/**
 * Writes the answer of `/tokenize`.
 * @param pieces the bytes of each token, if the client wants them
 * @param context the model's context in tokens
 */
function* tokenized(
  tokens: Int32Array,
  pieces: readonly Buffer[] | null,
  { with_pieces: withPieces, return_token_strs: withTexts }: Type.Static<typeof TokenizeBody>,
  context: number | undefined,
): Steps<object> {
  const told: (number | object)[] = []
  const texts: string[] = []
  for (let at = 0; at < tokens.length; at++) {
    if (at % STEP === STEP - 1) yield
    const [id, piece] = [tokens[at]!, pieces?.[at]]
    told.push(withPieces === true && piece !== undefined ? { id, piece: pieceOf(piece) } : id)
    if (withTexts === true && piece !== undefined) texts.push(piece.toString())
  }
  return {
    tokens: told,
    count: tokens.length,
    max_model_len: context ?? null,
    ...(withTexts === true ? { token_strs: texts } : {}),
  }
}

/** Returns a token's text; its bytes if it is only part of a character. */
function pieceOf(piece: Buffer): string | readonly number[] {
  const text = piece.toString()
  return text.includes('\ufffd') ? [...piece] : text
}
