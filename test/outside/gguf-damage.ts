/** Owns the damage done to GGUF files: one seeded change after another, of every part that a loader reads. */
import type { Random } from '../../src/runtime/core/random.js'
import {
  ARRAY,
  BOOL,
  list,
  readStrings,
  SCALARS,
  serializeGguf,
  STRING,
  strings,
  text,
  U32,
  u32,
  u64,
  type Entry,
  type Gguf,
  type TensorEntry,
} from './gguf-edit.js'
import {
  ADDS,
  ARCHITECTURES,
  array,
  EXTRA_TENSORS,
  INTEGERS,
  OPTIONAL,
  pick,
  scalar,
  show,
  TEXTS,
  TOKEN_KEYS,
} from './gguf-odd.js'

export interface Damaged {
  readonly bytes: Buffer
  /** What was done, for a report. */
  readonly what: string
}

/** Bytes and elements of a block, by ggml_type of this release. */
export type Blocks = readonly (readonly [bytes: number, elements: number])[]

/** A copy with one change, now and then two or three. Precondition: `whole` is sound; it is not changed. */
export function damage(whole: Gguf, random: Random, blocks: Blocks): Damaged {
  const gguf: Gguf = {
    entries: whole.entries.map((entry) => ({ ...entry })),
    tensors: whole.tensors.map((tensor) => ({ ...tensor, dims: [...tensor.dims] })),
  }
  const changes = random.below(6) === 0 ? 2 + random.below(2) : 1
  const told: string[] = []
  let last: ((bytes: Buffer) => string) | null = null
  for (let change = 0; change < changes; change++) {
    const draw = random.below(100)
    if (draw < 88) told.push(changed(gguf, random, blocks))
    else last = (bytes) => blunt(bytes, random)
  }
  const { bytes, header } = serializeGguf(gguf)
  if (last === null) return { bytes, what: told.join('; ') }
  const cut = { bytes }
  if (random.below(4) === 0) {
    const length = random.below(bytes.length)
    told.push(`cut at ${length} of ${bytes.length}`)
    cut.bytes = bytes.subarray(0, length)
  } else told.push(last(random.below(4) > 0 ? bytes.subarray(0, header) : bytes))
  return { bytes: cut.bytes, what: told.join('; ') }
}

/** What an earlier change left may not be there to be changed: a list of nothing, a length that is none. */
function changed(gguf: Gguf, random: Random, blocks: Blocks): string {
  const change = pick(CHANGES, random)
  try {
    return change(gguf, random, blocks)
  } catch (error) {
    return `${change.name} could not: ${String(error)}`
  }
}

/** Bits and bytes changed in place. */
function blunt(bytes: Buffer, random: Random): string {
  const told: string[] = []
  for (let left = 1 + random.below(3); left > 0; left--) {
    const at = 4 + random.below(bytes.length - 4)
    const before = bytes[at]!
    bytes[at] = random.below(2) === 0 ? before ^ (1 << random.below(8)) : random.below(256)
    told.push(`byte ${at} ${before} -> ${bytes[at]}`)
  }
  return told.join(', ')
}

type Change = (gguf: Gguf, random: Random, blocks: Blocks) => string

const changeScalar: Change = ({ entries }, random) => {
  const entry = pick(
    entries.filter(({ type }) => type !== ARRAY && type !== STRING),
    random,
  )
  entry.value = scalar(entry.type, random, entry.value)
  return `${entry.key} = ${show(entry)}`
}

const changeText: Change = ({ entries }, random) => {
  const entry = pick(
    entries.filter(({ type }) => type === STRING),
    random,
  )
  const value = entry.key === 'general.architecture' ? pick(ARCHITECTURES, random) : pick(TEXTS, random)
  entry.value = text(value)
  return `${entry.key} = ${JSON.stringify(value.slice(0, 40))}`
}

const changeType: Change = ({ entries }, random) => {
  const entry = pick(entries, random)
  entry.type = random.below(14)
  entry.value =
    entry.type === STRING ? text(pick(TEXTS, random)) : entry.type === ARRAY ? array(random) : scalar(entry.type, random)
  return `${entry.key} of type ${entry.type} = ${show(entry)}`
}

const dropEntry: Change = ({ entries }, random) => {
  const [gone] = entries.splice(random.below(entries.length), 1)
  return `no ${gone!.key}`
}

const doubleEntry: Change = ({ entries }, random) => {
  const entry = { ...pick(entries, random) }
  if (entry.type !== ARRAY && entry.type !== STRING && random.below(2) === 0)
    entry.value = scalar(entry.type, random, entry.value)
  entries.splice(random.below(entries.length + 1), 0, entry)
  return `${entry.key} twice, = ${show(entry)}`
}

const addEntry: Change = ({ entries }, random) => {
  const architecture =
    entries
      .find(({ key }) => key === 'general.architecture')
      ?.value.subarray(8)
      .toString() ?? 'llama'
  const token = random.below(4)
  const [name, type] =
    token === 0
      ? ([`tokenizer.ggml.${pick(TOKEN_KEYS, random)}_token_id`, U32] as const)
      : token === 1 && random.below(3) === 0
        ? ([`tokenizer.ggml.${pick(ADDS, random)}`, BOOL] as const)
        : (([key, type]) => [`${architecture}.${key}`, type] as const)(pick(OPTIONAL, random))
  const asList = random.below(5) === 0 && type !== STRING
  const value = asList
    ? list(type, Buffer.concat(Array.from({ length: random.below(4) }, () => scalar(type, random))))
    : type === STRING
      ? text(pick(TEXTS, random))
      : scalar(type, random, u32(pick([1, 2, 4, 8, 16, 32, 64], random)))
  const entry = { key: name, type: asList ? ARRAY : type, value }
  const there = entries.findIndex(({ key }) => key === name)
  if (there === -1) entries.push(entry)
  else entries[there] = entry
  return `${name} = ${show(entry)}`
}

const changeList: Change = ({ entries }, random) => {
  const entry = pick(
    entries.filter(({ type }) => type === ARRAY),
    random,
  )
  const item = entry.value.readUInt32LE(0)
  const how = random.below(6)
  if (how === 0) entry.value = array(random)
  else if (item === STRING) return changeTexts(entry, random)
  else {
    const size = SCALARS[item]!
    let items = Buffer.from(entry.value.subarray(12))
    const one = () => scalar(item, random)
    if (how === 1) items = items.subarray(0, size * random.below(Math.max(1, items.length / size)))
    else if (how === 2) items = Buffer.concat([items, one(), one()])
    else if (how === 3)
      items = Buffer.concat(
        Array.from(
          { length: items.length / size },
          (
            (value) => () =>
              value
          )(one()),
        ),
      )
    else if (items.length > 0) one().copy(items, size * random.below(items.length / size))
    entry.value = list(item, items)
  }
  return `${entry.key} changed (${how}): ${entry.value.subarray(0, 60).toString('hex')}`
}

function changeTexts(entry: Entry, random: Random): string {
  const items = readStrings(entry.value)
  const at = random.below(Math.max(1, items.length))
  const how = random.below(9)
  if (how === 0) items.splice(at)
  else if (how === 1) items[at] = ''
  else if (how === 2) items[at] = items[random.below(Math.max(1, items.length))] ?? ''
  else if (how === 3) items.push('extra', 'extra two')
  else if (how === 4) items[at] = ` ${items[at]}`
  else if (how === 5) items[at] = 'x'.repeat(66_000)
  else if (how === 6) items[at] = '\u{10ffff}\u0000 nonsense here'
  else if (how === 7) items[at] = (items[at] ?? '').replace(' ', '')
  else items.length = 0
  entry.value = strings(items)
  return `${entry.key} changed at ${at} (${how})`
}

const tensorType: Change = ({ tensors }, random, blocks) => {
  const tensor = pick(tensors, random)
  tensor.type = random.below(blocks.length + 1)
  // Where its bytes are there too, the file looks whole.
  if (random.below(5) > 0) place(tensor, blocks, random)
  return `${tensor.name} of type ${tensor.type}`
}

const tensorDims: Change = ({ tensors }, random, blocks) => {
  const tensor = pick(tensors, random)
  const before = tensor.dims.join('x')
  const at = random.below(tensor.dims.length)
  const size = tensor.dims[at]!
  const how = random.below(7)
  if (how === 0) tensor.dims.reverse()
  else if (how === 1) tensor.dims.push(pick([1n, 2n, 0n], random))
  else if (how === 2) tensor.dims.pop()
  else tensor.dims[at] = pick([0n, 1n, size * 2n, size / 2n, size + 1n, size - 1n, 2n ** 31n, 2n ** 63n, ...INTEGERS], random)
  if (random.below(2) === 0) place(tensor, blocks, random)
  return `${tensor.name} of ${before} becomes ${tensor.dims.join('x')}`
}

const tensorOffset: Change = ({ tensors }, random) => {
  const tensor = pick(tensors, random)
  tensor.offset = pick([0n, 1n, 32n, 1024n, 2n ** 20n, 2n ** 62n, 2n ** 63n, 2n ** 64n - 32n], random)
  return `${tensor.name} at ${tensor.offset}`
}

const dropTensor: Change = ({ tensors }, random) => {
  const [gone] = tensors.splice(random.below(tensors.length), 1)
  return `no tensor ${gone!.name}`
}

const renameTensor: Change = ({ tensors }, random) => {
  const tensor = pick(tensors, random)
  const before = tensor.name
  tensor.name = pick(
    [pick(tensors, random).name, pick(EXTRA_TENSORS, random).replace('#', '0'), '', 'x'.repeat(64), 'x'.repeat(300)],
    random,
  )
  return `${before} is called ${tensor.name.slice(0, 70)}`
}

/** An optional tensor, as large as one of the others. */
const addTensor: Change = (gguf, random, blocks) => {
  const like = pick(gguf.tensors, random)
  const name = pick(EXTRA_TENSORS, random).replace('#', String(random.below(2)))
  const dims = random.below(3) === 0 ? [pick([1n, 2n, 8n, 16n, 64n, 128n, 400n], random)] : [...like.dims]
  const tensor: TensorEntry = {
    name,
    dims,
    type: random.below(3) === 0 ? random.below(blocks.length) : like.type,
    data: like.data,
  }
  const there = gguf.tensors.findIndex((other) => other.name === name)
  if (there === -1) gguf.tensors.push(tensor)
  else gguf.tensors[there] = tensor
  place(tensor, blocks, random)
  return `another tensor ${name} of ${dims.join('x')}, type ${tensor.type}`
}

const changeCounts: Change = (gguf, random) => {
  const count = pick([...INTEGERS, 2n ** 64n - 1n, BigInt(gguf.tensors.length) + 1n, BigInt(gguf.tensors.length) - 1n], random)
  if (random.below(2) === 0) gguf.tensorCount = count
  else gguf.entryCount = count
  return `counts ${gguf.tensorCount} tensors, ${gguf.entryCount} entries`
}

/** Longer or shorter than a list, a text or a vocabulary says. */
const changeLength: Change = ({ entries }, random) => {
  const entry = pick(
    entries.filter(({ type }) => type === STRING || type === ARRAY),
    random,
  )
  entry.value = Buffer.from(entry.value)
  const at = entry.type === STRING ? 0 : 4
  const before = entry.value.readBigUInt64LE(at)
  const length = pick([...INTEGERS, before + 1n, before - 1n, 2n ** 64n - 1n], random)
  u64(length).copy(entry.value, at)
  return `${entry.key} says its length is ${length} instead of ${before}`
}

const changeVocabulary: Change = ({ entries }, random) => {
  const entry = pick(
    entries.filter(({ key }) => key.startsWith('tokenizer.ggml.')),
    random,
  )
  if (entry.type === ARRAY) return changeList({ entries: [entry], tensors: [] }, random, [])
  const model = entries.find(({ key }) => key === 'tokenizer.ggml.model')
  if (entry.type === STRING && model !== undefined) {
    const name = pick(['gpt2', 'llama', 'bert', 't5', 'rwkv', 'plamo2', 'none', 'no_vocab', 'gemma4', 'mpt', 'default'], random)
    const changed = random.below(3) === 0 ? entry : model
    changed.value = text(name)
    return `${changed.key} = ${name}`
  }
  entry.value = entry.type === STRING ? text(pick(TEXTS, random)) : scalar(entry.type, random, entry.value)
  return `${entry.key} = ${show(entry)}`
}

const CHANGES: readonly Change[] = [
  ...[
    changeScalar,
    changeScalar,
    changeScalar,
    changeScalar,
    addEntry,
    addEntry,
    addEntry,
    changeText,
    changeType,
    dropEntry,
    doubleEntry,
  ],
  ...[changeList, changeList, changeVocabulary, changeVocabulary, changeLength, changeCounts],
  ...[tensorType, tensorType, tensorType, tensorDims, tensorDims, tensorOffset, dropTensor, renameTensor, addTensor, addTensor],
]

/** Gives a tensor as many bytes as its type and size need: halves of small numbers, whatever its type makes of them. */
function place(tensor: TensorEntry, blocks: Blocks, random: Random): void {
  const [bytes, elements] = blocks[tensor.type] ?? [0, 0]
  const count = tensor.dims.reduce((product, size) => product * size, 1n)
  if (elements === 0 || count > 2n ** 22n) return
  tensor.data = Buffer.alloc(Math.ceil(Number(count) / elements) * bytes)
  for (let at = 0; at + 1 < tensor.data.length; at += 2) tensor.data.writeUInt16LE(0x2c00 + random.below(64), at)
}
