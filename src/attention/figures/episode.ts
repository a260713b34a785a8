/** Owns the figure of an episode: for each step of an agent's turn, where its tokens looked, message by message, next to what it did. */
import type { EpisodeRecord, EpisodeStep } from '../run-folder.js'
import { drawing, element, escaped, hint, legend, text } from './svg.js'

const WIDTH = 960
const LEFT = 20
const RIGHT = 940
const TOP = 96
const ROW = 74
const BAR = 30

const ROLES: Readonly<Record<string, string>> = {
  system: '#8b8b94',
  user: '#0d9488',
  assistant: '#3b82f6',
  tool: '#ea580c',
}
const MARKER = '#facc15'
const OWN = '#9333ea'
/** Narrower than this, a part has no room for its name. */
const NAMED = 30

export function episode({ n, seed, steps, right, asked }: EpisodeRecord): string {
  const title = `An agent's turn (n = ${n}, seed ${seed}): ${steps.length} steps, ${right} of ${asked} values right`
  const entries = [
    ...Object.entries(ROLES).map(([label, colour]) => ({ label, colour })),
    { label: 'markers of folded text', colour: MARKER },
    { label: "the step's own tokens", colour: OWN },
  ]
  return drawing(WIDTH, TOP + steps.length * ROW + 30, title, [
    text(LEFT, 28, title, { 'font-weight': '600' }),
    text(
      LEFT,
      48,
      'Where the tokens that a step generates look: mean over layers, heads and these tokens. Numbers are messages, from 0.',
      { class: 'kf-faint' },
    ),
    legend(LEFT + 5, 76, entries),
    ...steps.flatMap((step, index) => bar(step, TOP + index * ROW)),
    text(LEFT, TOP + steps.length * ROW + 14, '0 %', { class: 'kf-faint' }),
    text(RIGHT, TOP + steps.length * ROW + 14, '100 % of the attention', { class: 'kf-faint', 'text-anchor': 'end' }),
  ])
}

function bar({ step, calls, shares, own, queries, shown }: EpisodeStep, top: number): string[] {
  const parts = [
    ...shares.flatMap(({ message, role, mass, markers, tokens }) => [
      {
        name: String(message),
        colour: ROLES[role] ?? '#8b8b94',
        mass: mass - markers,
        says: `message ${message} (${role}, ${tokens} tokens)`,
      },
      { name: '', colour: MARKER, mass: markers, says: `markers in message ${message}` },
    ]),
    { name: 'own', colour: OWN, mass: own, says: "the step's own tokens" },
  ].filter(({ mass }) => mass > 0)
  const whole = parts.reduce((sum, { mass }) => sum + mass, 0)
  let x = LEFT
  return [
    text(LEFT, top + 14, `step ${step + 1}: ${said(calls)}`),
    text(RIGHT, top + 14, `${queries} tokens looking, ${shown} shown before them`, { class: 'kf-faint', 'text-anchor': 'end' }),
    ...parts.map(({ name, colour, mass, says }) => {
      const [from, wide] = [x, (mass / whole) * (RIGHT - LEFT)]
      x += wide
      const drawn = element(
        'rect',
        { x: from, y: top + 22, width: Math.max(0.3, wide - 0.6), height: BAR, fill: colour },
        hint(`${says}: ${(100 * mass).toFixed(2)} %`),
      )
      return wide < NAMED
        ? drawn
        : drawn +
            element(
              'text',
              { x: from + wide / 2, y: top + 22 + BAR / 2 + 4.5, fill: '#ffffff', 'text-anchor': 'middle' },
              escaped(name),
            )
    }),
  ]
}

/** Calls with how often each was made; without any, the step answered. */
function said(calls: readonly string[]): string {
  const names = [...new Set(calls)]
  if (names.length === 0) return 'the answer'
  return names
    .map((name) => [name, calls.filter((call) => call === name).length] as const)
    .map(([name, count]) => (count > 1 ? `${name} x ${count}` : name))
    .join(', ')
}
