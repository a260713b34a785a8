/** What all attention commands share: their options, loading the engine without flash attention, and the terminal output. */
import { type Command, Option } from 'commander'
import { CHANGES, type Finding, type FindingFigure, type StudySummary } from '../../attention/findings.js'
import { type Contract, CONTRACTS } from '../../../runtime/core/contract.js'
import { KvfoldError } from '../../../runtime/core/errors.js'
import { LlamaEngine } from '../../../runtime/engine/llama.js'
import { percent, probability, signed } from '../../../runtime/figures/numbers.js'
import { left, right, table, terminal } from '../../../runtime/figures/table.js'
import { listContracts } from '../lists.js'
import { addModelOptions, integers, type ModelFlags, withoutDraftModel } from '../../../runtime/cli/options.js'
import { enginePath, nativeLibrary, optionsOf } from '../../../runtime/cli/runtime.js'
import type { Shell } from '../../../runtime/cli/shell.js'

export interface StudyFlags extends Omit<ModelFlags, 'contract'> {
  readonly contract: readonly Contract[]
  readonly layers?: readonly number[]
  readonly out: string
  readonly json?: true
}

/**
 * Adds the options that every attention study has, including those of the model. Here `--contract` takes a list.
 * @param folder the default folder for results
 */
export function addStudyOptions(command: Command, folder: string): Command {
  addModelOptions(command)
  listContracts(command, `contracts of the folds: one or several of ${CONTRACTS.join(', ')}`, CONTRACTS, CONTRACTS)
  return command
    .addOption(new Option('--layers <list>', 'layers to look at, from 0 (default: all)').argParser(integers(0, 10_000)))
    .option('--out <folder>', 'folder for the results', folder)
    .option('--json', 'end with a line of JSON: the findings, and the path of the report')
}

/**
 * Loads the model without flash attention, which does not expose attention weights. The caller disposes of the engine.
 * @throws KvfoldError cli/bad-usage for `--flash-attention on`, and the errors of LlamaEngine.load
 */
export async function loadForLooking(flags: StudyFlags, { notes, interrupt }: Shell): Promise<LlamaEngine> {
  if (flags.flashAttention === 'on')
    throw new KvfoldError(
      'cli/bad-usage',
      'Flash attention does not compute the weights that this command measures; leave out --flash-attention on.',
    )
  const settings = optionsOf({ ...withoutDraftModel(flags), contract: 'exact' })
  const path = await enginePath({ ...flags, contract: 'exact' }, { attention: true }, notes, interrupt.signal)
  const native = await nativeLibrary(flags.gpu)
  return LlamaEngine.load(native, path, { ...settings, flashAttention: 'off', attention: true, slots: 1 })
}

// Below: the findings of a study for the terminal, as a table and as sentences.

/** Returns the findings as lines: a table with the paper's row last, and an explanation of its columns. */
export function findingLines({ findings, paper }: StudySummary, rule: string): string[] {
  const changes = CHANGES.map(([title]) => `${title.replace('arithmetic ', '')} %`)
  const columns = [
    ...['folded', 'from'].map(left),
    ...['pairs', 'gain', 'mean %', '95 %', ...changes, 'median %', 'range %', 'R2', 'p (t)', 'p (W)', 'below even'].map(right),
  ]
  const rows = findings.map((finding) => [
    ...[finding.contract, finding.from === 'value' ? 'value' : 'predicting', String(finding.pairs)],
    finding.improvedShare === null ? '-' : `${finding.improved} (${percent(finding.improvedShare.value)})`,
    ...[valueOf(finding.meanChange), endsOf(finding.meanChange), ...CHANGES.map(([, of]) => valueOf(finding[of]))],
    valueOf(finding.medianChange),
    finding.range === null ? '-' : finding.range.map(plain).join(' .. '),
    finding.r2 === null ? '-' : finding.r2.value.toFixed(3),
    ...testsOf(finding),
    String(finding.belowEven),
  ])
  const theirs = [
    ...['(the paper)', 'value', String(paper.pairs), `${paper.improved} (${percent(paper.improvedShare)})`],
    ...[plain(paper.meanChange), '', ...CHANGES.map(() => '')],
    ...[plain(paper.medianChange), paper.range.map(plain).join(' .. '), String(paper.r2), paper.p],
  ]
  return [
    ...terminal(table(columns, [...rows, theirs]), rule),
    '',
    "The table shows how the mean attention to a key's current value changes from the complete to the folded prompt. " +
      "from value: the value's tokens in the answer look, as in the paper; predicting: the token before them looks. " +
      'below even: pairs whose weight was less than an even share; percentages of it say little. ' +
      'alone: the change by softmax arithmetic, which divides every weight by the mass that is not folded; excess: the observed change less that one. ' +
      'Two controls fold other text of as many tokens: made-up words (placebo), and the same updates under keys that the question does not ask for (unasked). ' +
      'beyond placebo, beyond unasked: the excess less that of the control, pair by pair. ' +
      'others: the mass on all other tokens of the stream that stay open. 95 %: bootstrap over prompts. p: t test and Wilcoxon test over pairs. ' +
      'The paper: Sculptor, section 4.3, another model.',
    ...leftOut(findings),
  ]
}

/** Returns one note per contract under which pairs could not be compared: how many, and why. */
function leftOut(findings: readonly Finding[]): string[] {
  return findings
    .filter(({ from }) => from === 'value')
    .flatMap(({ contract, counts, fellBack }) => {
      const parts = [
        ...(counts['folded-away'] > 0 ? [`${counts['folded-away']} whose value is folded away`] : []),
        ...(counts.unanswered > 0 ? [`${counts.unanswered} whose value an answer does not give`] : []),
        ...(fellBack > 0 ? [`the pairs of ${fellBack} prompts whose step was exact instead`] : []),
      ]
      return parts.length === 0 ? [] : [`Left out under ${contract}: ${parts.join(', ')}.`]
    })
}

const plain = (value: number): string => signed(value).replace('−', '-')
const valueOf = (figure: FindingFigure | null): string => (figure === null ? '-' : plain(figure.value))
const endsOf = (figure: FindingFigure | null): string =>
  (figure?.interval ?? null) === null ? '-' : figure!.interval!.map(plain).join(' .. ')
const testsOf = ({ overPairs: { t, wilcoxon } }: Finding): string[] =>
  [t, wilcoxon].map((test) => (test === null ? '-' : probability(test.p)))

/** The fields of a finding whose values `--json` prints. */
const VALUES = [
  ...(['meanChange', 'medianChange', 'baselineMeanChange', 'excessMeanChange', 'baselineR2', 'placeboMeanChange'] as const),
  ...(['placeboBaselineMeanChange', 'unaskedMeanChange', 'unaskedBaselineMeanChange', 'beyondPlacebo', 'beyondUnasked'] as const),
  ...(['othersMeanChange', 'changeOfMean', 'r2'] as const),
]

/** Returns a finding as the object that `--json` prints. */
export function machineFinding(finding: Finding): object {
  const { contract, from, pairs, improved, range, counts, fellBack, belowEven, overPairs, overSeeds, excessOverSeeds } = finding
  return {
    ...{ contract, from, pairs, improved },
    ...Object.fromEntries(VALUES.map((name) => [name, finding[name]?.value ?? null])),
    meanInterval: finding.meanChange?.interval ?? null,
    medianInterval: finding.medianChange?.interval ?? null,
    excessInterval: finding.excessMeanChange?.interval ?? null,
    beyondUnaskedInterval: finding.beyondUnasked?.interval ?? null,
    range,
    ...{ p: overPairs.t?.p ?? null, wilcoxon: overPairs.wilcoxon?.p ?? null },
    ...{ seedP: overSeeds.t?.p ?? null, seedWilcoxon: overSeeds.wilcoxon?.p ?? null },
    ...{ excessSeedP: excessOverSeeds.t?.p ?? null, excessSeedWilcoxon: excessOverSeeds.wilcoxon?.p ?? null },
    byDistance: finding.byDistance.map(({ meanChange, excessMeanChange, ...row }) => ({
      ...row,
      ...{ meanChange: meanChange?.value ?? null, excessMeanChange: excessMeanChange?.value ?? null },
    })),
    ...{ counts, fellBack, belowEven },
  }
}
