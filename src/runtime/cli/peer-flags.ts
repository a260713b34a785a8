/**
 * Accepts flags of llama-server, llama-cli and vLLM for `serve`, `run` and `chat`. A flag with an equivalent is translated. For any other,
 * the error names the kvfold option to use.
 */
import type { Command } from 'commander'
import { KvfoldError } from '../core/errors.js'

type Peer =
  /**
   * The flag means kvfold's option `ours`. Values that match `drops` ask for kvfold's default, so the flag is dropped. `as` converts other
   * values.
   */
  | { readonly ours: string; readonly drops?: RegExp; readonly as?: (value: string) => string }
  /** The flag asks for something that kvfold always does. */
  | 'always'
  /** kvfold has no equivalent. The sentence says what it has instead. */
  | { readonly says: string }

const layers: Peer = {
  ours: '--gpu-layers',
  drops: /^(?:-1|auto)$/,
  as: (value) => (value === 'all' ? '10000' : value),
}
const context: Peer = { ours: '--context', drops: /^0$/ }
const slots: Peer = { ours: '--slots', drops: /^(?:-1|auto)$/ }
const hub: Peer = { ours: '--model', as: (value) => (/^(?:hf|huggingface):|^https?:/i.test(value) ? value : `hf:${value}`) }
const draft: Peer = { ours: '--speculate', as: (value) => `draft=${value}` }
const batch: Peer = { says: 'kvfold forms its batches itself; --ubatch says how many tokens are computed at once' }
const mmap: Peer = { says: 'kvfold always maps model files into memory and does not lock them there' }

const PEERS: Readonly<Record<string, Peer>> = {
  '-ngl': layers,
  '--ngl': layers,
  '--n-gpu-layers': layers,
  '--num-gpu': layers,
  '--ctx-size': context,
  '--ctx': context,
  '--num-ctx': context,
  '--max-model-len': context,
  '-np': slots,
  '--parallel': slots,
  '--max-num-seqs': slots,
  '-ub': { ours: '--ubatch' },
  '--ubatch-size': { ours: '--ubatch' },
  '-ctk': { ours: '--cache-type-k' },
  '-ctv': { ours: '--cache-type-v' },
  '-hf': hub,
  '-hfr': hub,
  '--hf': hub,
  '--hf-repo': hub,
  '-mu': { ours: '--model' },
  '--model-url': { ours: '--model' },
  '-a': { ours: '--alias' },
  '--served-model-name': { ours: '--alias' },
  '--temp': { ours: '--temperature' },
  '-n': { ours: '--max-tokens', drops: /^-[12]$/ },
  '--predict': { ours: '--max-tokens', drops: /^-[12]$/ },
  '--n-predict': { ours: '--max-tokens', drops: /^-[12]$/ },
  '--num-predict': { ours: '--max-tokens', drops: /^-[12]$/ },
  '--system-prompt': { ours: '--system' },
  '-sys': { ours: '--system' },
  '--json-schema-file': { ours: '--schema' },
  '--grammar-file': { ours: '--grammar' },
  '--kv-cache-dtype': { ours: '--cache-type-k' },
  '--chat-template-file': { ours: '--chat-template' },
  '--models-dir': { ours: '--models' },
  '--ssl-key-file': { ours: '--tls-key' },
  '--ssl-cert-file': { ours: '--tls-cert' },
  '--ssl-keyfile': { ours: '--tls-key' },
  '--ssl-certfile': { ours: '--tls-cert' },
  '--slot-save-path': { ours: '--disk-cache' },
  '--jinja': 'always',
  '--cont-batching': 'always',
  '--cache-prompt': 'always',
  '--enable-prefix-caching': 'always',
  '--enable-auto-tool-choice': 'always',
  '--enable-lora': 'always',
  '--webui': 'always',
  '--metrics': 'always',
  '--props': 'always',
  '--mmap': 'always',
  '-b': batch,
  '--batch-size': batch,
  '--no-mmap': mmap,
  '--mlock': mmap,
  '--no-jinja': { says: 'kvfold always uses the Jinja template of the model; --chat-template FILE gives it another' },
  '--api-key-file': { says: '--api-keys-file takes a file with one name:key a line' },
  '--mmproj': { says: 'kvfold takes text only; --unsupported placeholder lets clients send images' },
  '-v': { says: '--log-level debug makes kvfold say more' },
  '--verbose': { says: '--log-level debug makes kvfold say more' },
  '--file': { says: 'give the file as an argument' },
  '--embedding': { says: '--embeddings serves them' },
  '--rerank': { says: '--reranking MODEL serves a reranker' },
  '--cache-reuse': {
    says: 'kvfold always reuses cached text; --client-edits says what happens where a client changed its messages',
  },
  '--tool-call-parser': { says: 'the chat template says how tools are called' },
  '--context-shift': { says: '--overflow says what happens to a conversation that does not fit' },
  '-md': draft,
  '--model-draft': draft,
  '--spec-draft-model': draft,
  '--lora-scaled': { says: '--lora PATH=SCALE loads an adapter with its scale' },
  '--lora-init-without-apply': { says: '--lora PATH=0 loads an adapter that applies only where a request names it' },
  '--lora-modules': { says: '--lora PATH loads an adapter, and its file name is its name as a model' },
  '-to': { says: '--timeout SECONDS limits the time of an answer' },
  '--gpu-memory-utilization': { says: '--context and --host-cache say how much memory is used' },
  '--kv-events-config': {
    says: '--kv-events takes its endpoint, --kv-events-replay, --kv-events-topic and --kv-events-buffer-steps its other fields',
  },
  '--tensor-parallel-size': { says: 'kvfold computes on one device; --gpu names its kind' },
}

const FLASH: ReadonlySet<string> = new Set(['-fa', '--flash-attn'])
const COMMANDS: ReadonlySet<string> = new Set(['serve', 'run', 'chat'])

/**
 * Returns the command line with the flags of other programs translated. The own options of `command` keep their meaning.
 * @throws KvfoldError cli/bad-usage for a flag without an equivalent
 */
export function withoutPeerFlags(words: readonly string[], command: Command | undefined): readonly string[] {
  if (command === undefined || !COMMANDS.has(command.name())) return words
  const own = new Map(command.options.flatMap((option) => [option.short, option.long].map((flag) => [flag, option] as const)))
  const left = [...words]
  const made: string[] = []
  const next = () => {
    const value = left.shift()
    if (value === undefined)
      throw new KvfoldError('cli/bad-usage', `${made.at(-1)} lacks its value; see kvfold ${command.name()} --help.`)
    return value
  }
  while (left.length > 0) {
    const word = left.shift()!
    if (word === '--') return [...made, word, ...left]
    const [, flag = word, given] = /^(--[\w-]+)=(.*)$/s.exec(word) ?? []
    const ours = own.get(flag)
    if (ours !== undefined) {
      if (ours.required && given === undefined && left.length > 0) {
        refuseThreads(flag, left[0]!, command)
        made.push(word, next())
      } else made.push(word)
    } else if (FLASH.has(flag)) {
      const isSaid = given === undefined && /^(?:on|off|auto|[01]|true|false|enabled|disabled)$/i.test(left[0] ?? '')
      const value = (given ?? (isSaid ? next() : 'on')).toLowerCase()
      made.push(
        '--flash-attention',
        /^(?:1|true|enabled)$/.test(value) ? 'on' : /^(?:0|false|disabled)$/.test(value) ? 'off' : value,
      )
    } else {
      const peer = Object.hasOwn(PEERS, flag) ? PEERS[flag] : undefined
      if (peer === undefined) made.push(word)
      else if (peer !== 'always') made.push(...translated(flag, peer, own.has(flagOf(peer)), () => given ?? next()))
    }
  }
  return made
}

const flagOf = (peer: Exclude<Peer, 'always'>): string => ('ours' in peer ? peer.ours : '')

function translated(flag: string, peer: Exclude<Peer, 'always'>, isHere: boolean, value: () => string): readonly string[] {
  if ('says' in peer) throw new KvfoldError('cli/bad-usage', `${flag} has no equal here: ${peer.says}.`)
  if (!isHere) throw new KvfoldError('cli/bad-usage', `${flag} is ${peer.ours} here, which this command does not have.`)
  const given = value()
  return peer.drops?.test(given) === true ? [] : [peer.ours, peer.as?.(given) ?? given]
}

/** Refuses a `-t` that looks like llama-server's number of threads. In kvfold `-t` is the temperature, which is hardly ever 4 or more. */
function refuseThreads(flag: string, value: string, command: Command): void {
  if (flag === '-t' && /^\d+$/.test(value) && Number(value) > 3)
    throw new KvfoldError(
      'cli/bad-usage',
      `-t is the temperature in kvfold ${command.name()}; for ${value} threads write --threads ${value}, for that temperature --temperature ${value}.`,
    )
}
