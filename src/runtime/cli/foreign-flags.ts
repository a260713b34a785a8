/** Names our option, or says what to do, where a command is given an option of another runtime. */
import type { Command } from 'commander'

/** Options of llama-server, llama-cli, Ollama and vLLM that have another name here. */
const OURS: Readonly<Record<string, string>> = {
  '--ctx-size': '--context',
  '--ctx': '--context',
  '--num-ctx': '--context',
  '--max-model-len': '--context',
  '--n-gpu-layers': '--gpu-layers',
  '--num-gpu': '--gpu-layers',
  '--ngl': '--gpu-layers',
  '--n-predict': '--max-tokens',
  '-n': '--max-tokens',
  '--num-predict': '--max-tokens',
  '--predict': '--max-tokens',
  '--temp': '--temperature',
  '--system-prompt': '--system',
  '-sys': '--system',
  '--file': 'the file as an argument',
  '--ubatch-size': '--ubatch',
  '-ub': '--ubatch',
  '--batch-size': '--ubatch',
  '--flash-attn': '--flash-attention',
  '-fa': '--flash-attention',
  '--kv-cache-dtype': '--cache-type-k',
  '-ctk': '--cache-type-k',
  '-ctv': '--cache-type-v',
  '--parallel': '--slots',
  '-np': '--slots',
  '--max-num-seqs': '--slots',
  '--hf-repo': '--model hf:user/repository/file.gguf',
  '-hf': '--model hf:user/repository/file.gguf',
  '--served-model-name': '--alias',
  '--api-key-file': '--api-keys-file',
  '--ssl-key-file': '--tls-key',
  '--ssl-keyfile': '--tls-key',
  '--ssl-cert-file': '--tls-cert',
  '--ssl-certfile': '--tls-cert',
  '--embedding': '--embeddings',
  '--rerank': '--reranking',
  '--json-schema-file': '--schema',
  '--grammar-file': '--grammar',
  '--chat-template-file': '--chat-template',
  '--slot-save-path': '--disk-cache',
  '--log-verbosity': '--log-level',
  '--timeout-keep-alive': '--keep-alive',
  '--output': '--out',
  '-o': '--out',
}

/** Options that need no counterpart, and why. */
const NEEDLESS: Readonly<Record<string, string>> = {
  '--jinja': 'chat templates are always read; leave it out',
  '--cache-reuse': 'cached text is always reused; --client-edits says what happens where a client changed its messages',
  '--cache-prompt': 'cached text is always reused; leave it out',
  '--enable-prefix-caching': 'cached text is always reused; leave it out',
  '--cont-batching': 'requests are always batched; leave it out',
  '--enable-auto-tool-choice': 'tool calls are always read; leave it out',
  '--tool-call-parser': 'the chat template says how tools are called; leave it out',
  '--webui': 'the dashboard is always at /; leave it out',
  '--context-shift': 'see --overflow, which says what happens to a conversation that does not fit',
  '--gpu-memory-utilization': 'see --gpu-layers and --context, which decide how much memory is used',
  '--mmproj': 'kvfold takes no images',
  '--draft-model': 'kvfold has no speculative decoding',
  '--model-draft': 'kvfold has no speculative decoding',
}

/** A sentence about an option that `command` does not know, without the point at its end; null for an option of nobody we know. */
export function foreignFlag(flag: string, command: Command | undefined): string | null {
  const [name = ''] = flag.split('=')
  const needless = NEEDLESS[name]
  if (needless !== undefined) return needless
  const ours = OURS[name]
  if (ours === undefined) return null
  const option = ours.split(' ')[0]!
  const has = command?.options.some(({ long }) => long === option) ?? false
  return has || !option.startsWith('--') ? `here it is ${ours}` : null
}
