/** Tests the flags of llama-server and vLLM on our commands: taken where the meaning is the same, else answered with the name of ours. */
import { Command } from 'commander'
import { beforeAll, describe, expect, it } from 'vitest'
import { addRun } from '../../../src/runtime/cli/commands/run.js'
import { addServe } from '../../../src/runtime/cli/commands/serve.js'
import { withoutPeerFlags } from '../../../src/runtime/cli/peer-flags.js'
import type { Shell } from '../../../src/runtime/cli/shell.js'

const program = new Command('kvfold')
const command = (name: string) => program.commands.find((each) => each.name() === name)
const ours = (text: string) => withoutPeerFlags(text.split(' '), command(text.split(' ')[0]!)).join(' ')

beforeAll(() => {
  addServe(program, {} as Shell, 'test')
  addRun(program, {} as Shell)
})

describe('flags of peers', () => {
  it.each([
    ['serve -m a.gguf -c 4096 -ngl 99', 'serve -m a.gguf -c 4096 --gpu-layers 99'],
    ['serve --n-gpu-layers=all --ctx-size 0 -np 4 -fa', 'serve --gpu-layers 10000 --slots 4 --flash-attention on'],
    ['serve -ngl auto --parallel -1 --flash-attn auto', 'serve --flash-attention auto'],
    ['serve -fa 1 --jinja --metrics --host 0.0.0.0 --port 1', 'serve --flash-attention on --host 0.0.0.0 --port 1'],
    ['serve -hf owner/repo:Q4_K_M -a gpt', 'serve --model hf:owner/repo:Q4_K_M --alias gpt'],
    ['serve --hf-repo hf:owner/repo', 'serve --model hf:owner/repo'],
    ['serve --max-model-len 4096 --served-model-name gpt a.gguf', 'serve --context 4096 --alias gpt a.gguf'],
    ['serve -ub 512 -ctk q8_0 -ctv q8_0', 'serve --ubatch 512 --cache-type-k q8_0 --cache-type-v q8_0'],
    ['serve -m a.gguf -md b.gguf', 'serve -m a.gguf --speculate draft=b.gguf'],
    ['serve --models-dir models -t 0.7', 'serve --models models -t 0.7'],
    ['run -n 20 --temp 0 -p hi', 'run --max-tokens 20 --temperature 0 -p hi'],
    ['run -n -1 -p -fa', 'run -p -fa'],
    ['run -p hi -- -hf x', 'run -p hi -- -hf x'],
  ])('%s', (given, made) => {
    expect(ours(given)).toBe(made)
  })

  it.each([
    ['serve -b 2048', '--ubatch'],
    ['serve --batch-size=2048', '--ubatch'],
    ['serve -t 8', '--threads 8'],
    ['run -t 4 -p x', '--threads 4'],
    ['serve --no-jinja', '--chat-template'],
    ['serve --mmproj x', '--unsupported placeholder'],
    ['serve --mlock', 'memory'],
    ['serve --lora-scaled a.gguf:0.5', '--lora PATH=SCALE'],
    ['serve --lora-modules a=a.gguf', '--lora PATH'],
    ['serve -n 5', '--max-tokens'],
    ['run -np 4', '--slots'],
    ['serve -ngl', 'value'],
  ])('%s is answered with a sentence', (given, named) => {
    expect(() => ours(given)).toThrow(named)
    expect(() => ours(given)).toThrow(expect.objectContaining({ code: 'cli/bad-usage' }))
  })

  it('leaves other commands alone', () => {
    expect(withoutPeerFlags(['eval', '-n', '5'], new Command('eval'))).toEqual(['eval', '-n', '5'])
    expect(withoutPeerFlags(['nonsense', '-fa'], undefined)).toEqual(['nonsense', '-fa'])
  })
})
