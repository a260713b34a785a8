import { writeFileSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Command, InvalidArgumentError } from 'commander'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import {
  addModelOptions,
  addSamplingOptions,
  answerSettings,
  decimal,
  engineOptions,
  integer,
  integers,
  readText,
  sampling,
  type ModelFlags,
  type SamplingFlags,
} from '../../../src/runtime/cli/options.js'
import { acmAdapter } from '../../../src/runtime/cli/builtin.js'
import { definedFields } from '../../../src/runtime/core/json.js'

function parse(...words: string[]): ModelFlags & SamplingFlags {
  const command = addSamplingOptions(addModelOptions(new Command('test'))).exitOverride()
  command.configureOutput({ writeErr: () => undefined })
  command.parse(words, { from: 'user' })
  return command.opts()
}

describe('numbers', () => {
  it('takes whole numbers within the bounds and nothing else', () => {
    const parse = integer(1, 64)
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 64 }), (value) => {
        expect(parse(String(value))).toBe(value)
      }),
    )
    for (const bad of ['', ' ', '0', '65', '-1', '1.5', '1e1', '0x10', 'four', 'NaN', 'Infinity', '9007199254740993'])
      expect(() => parse(bad), bad).toThrow(InvalidArgumentError)
    expect(() => parse('four')).toThrow('It must be a whole number from 1 to 64.')
  })

  it('takes decimals within the bounds', () => {
    const parse = decimal(0, 1)
    expect([parse('0'), parse('0.25'), parse('1'), parse('1e-3')]).toEqual([0, 0.25, 1, 0.001])
    for (const bad of ['', '-0.1', '1.01', 'NaN', 'Infinity', 'half']) expect(() => parse(bad), bad).toThrow(InvalidArgumentError)
  })

  it('takes lists, sorted, each number once', () => {
    expect(integers(2, 400)('16, 4,8,4')).toEqual([4, 8, 16])
    for (const bad of ['', '4,', '4;8', '1,4']) expect(() => integers(2, 400)(bad), bad).toThrow(InvalidArgumentError)
  })
})

describe('model options', () => {
  it('take adapters with their scales; a name may have an equals sign', () => {
    const { lora } = parse('--lora', 'a.gguf', '--lora', 'b.gguf=0.5', '--lora', 'c=d.gguf', '--lora', 'e=f.gguf=-1e-1')
    expect(lora).toEqual([
      { path: 'a.gguf' },
      { path: 'b.gguf', scale: 0.5 },
      { path: 'c=d.gguf' },
      { path: 'e=f.gguf', scale: -0.1 },
    ])
    expect(engineOptions(parse('--lora', 'a.gguf')).lora).toEqual([{ path: 'a.gguf' }])
    const [shipped] = parse('--lora', 'acm=0.5').lora!
    expect(shipped).toEqual({ path: acmAdapter(), scale: 0.5 })
    expect(() => parse('--lora', '')).toThrow('It must be the path of a GGUF file, `acm`, or either with =scale.')
  })

  it('take a way to draft; a draft model is drafted from as far as it pays', () => {
    const { speculate, draft } = engineOptions(parse('--speculate', 'draft=small.gguf'))
    expect({ speculate, draft }).toEqual({ speculate: 'auto', draft: { path: 'small.gguf' } })
    expect(engineOptions(parse('--speculate', 'ngram')).speculate).toBe('ngram')
    for (const bad of ['draft', 'draft=', 'always'])
      expect(() => parse('--speculate', bad)).toThrow('It must be auto, ngram, off, or draft=MODEL')
  })

  it('default to the built-in model and leave the rest to the engine', () => {
    const flags = parse()
    expect(flags.model).toBe('builtin')
    expect(flags.gpu).toBe('auto')
    expect(engineOptions(flags)).toEqual({ flashAttention: 'auto', contract: 'exact', speculate: 'off', bareCalls: true })
    expect(sampling(flags)).toEqual({})
  })

  it('become the options of engine and sampler', () => {
    const flags = parse(
      ...[
        '--context',
        '4096',
        '--ubatch',
        '256',
        '--threads',
        '2',
        '--flash-attention',
        'on',
        '--cache-type-k',
        'q8_0',
        '--cache-type-v',
        'f16',
      ],
      ...['--gpu-layers', '3', '-t', '0.7', '--top-k', '40', '--top-p', '0.9', '--min-p', '0.05', '--seed', '7'],
    )
    expect(engineOptions(flags)).toEqual({
      contract: 'exact',
      speculate: 'off',
      bareCalls: true,
      cells: 4096,
      ubatch: 256,
      threads: 2,
      batchThreads: 2,
      flashAttention: 'on',
      keyType: 'q8_0',
      valueType: 'f16',
      model: { gpuLayers: 3 },
    })
    expect(sampling(flags)).toEqual({ temperature: 0.7, topK: 40, topP: 0.9, minP: 0.05, seed: 7 })
  })

  it('identify a run only where they differ from their defaults', () => {
    expect(answerSettings(parse('--blend', '0.4', '--cache-type-k', 'f16', '--cache-type-v', 'f16'))).toEqual(
      answerSettings(parse()),
    )
    expect(answerSettings(parse('--blend', '0.5', '--cache-type-k', 'f32'))).toEqual({ blend: 0.5, cacheTypeK: 'f32' })
  })

  it('read the template file, or name the option whose file cannot be read', () => {
    const folder = mkdtempSync(join(tmpdir(), 'kvfold-options-'))
    try {
      const file = join(folder, 'template.jinja')
      writeFileSync(file, '{{ messages }}')
      expect(engineOptions(parse('--chat-template', file)).chatTemplate).toBe('{{ messages }}')
      expect(() => readText(join(folder, 'none'), '--schema')).toThrow(/none given to --schema cannot be read \(ENOENT\)/)
      expect(() => readText(folder, '--schema')).toThrow(/EISDIR/)
    } finally {
      rmSync(folder, { recursive: true })
    }
  })

  it('are refused with the bounds', () => {
    expect(() => parse('--context', 'lots')).toThrow(/It must be a whole number from 8/)
    expect(() => parse('--gpu', 'abacus')).toThrow(/Allowed choices are auto, cpu, cuda, vulkan, metal/)
    expect(() => parse('--temperature', '-1')).toThrow(/It must be a number from 0 to 100/)
  })
})

it('`given` drops undefined values and keeps zero', () => {
  expect(definedFields({ a: 0, b: undefined, c: '', d: false })).toEqual({ a: 0, c: '', d: false })
})
