/** Owns the part of the page that says what was run: logs, how they differ, tasks, agents, and how the page was made. */
import { escaped } from '../../attention/figures/svg.js'
import { type LogFacts, machineName, type Summary } from './summary.js'
import { Labels } from './tables/table.js'

export function sources(summary: Summary): string {
  const { logs, tasks, agents, made } = summary
  const labels = new Labels(summary)
  return [
    apart(summary),
    ...logs.map((log) => logHtml(summary, log)),
    '<h3>Tasks</h3>',
    ...tasks.map(
      ({ options, differs }, index) =>
        `<p><strong>${escaped(labels.task(index))}</strong></p>\n${options.map((one) => `<pre>${json(one)}</pre>`).join('\n')}\n${
          differs.length === 0
            ? '<p class="faint">As its authors have it.</p>'
            : `<p class="faint">Differs from the original:</p><ul class="notes">${differs.map((one) => `<li>${escaped(one)}</li>`).join('')}</ul>`
        }`,
    ),
    '<h3>Agents</h3>',
    facts(
      agents.map(({ options, embedder }, index) => [
        labels.agent(index),
        `${JSON.stringify(options)}${embedder === null ? '' : `, embeds with ${embedder}`}`,
      ]),
    ),
    '<h3>This report</h3>',
    `<pre>${escaped(made.command)}</pre>`,
    `<p class="faint">kvfold ${escaped(made.kvfold)}, ${escaped(made.date)}. Beside this page: summary.json with all of its numbers, every table as Markdown and CSV, every figure as SVG.</p>`,
  ].join('\n')
}

/** Nothing where all logs are alike. */
function apart({ variants }: Summary): string {
  if (variants.length < 2) return ''
  const names = Object.keys(variants[0]!.facts)
  const different = names.filter((name) => new Set(variants.map(({ facts }) => facts[name])).size > 1)
  const head = ['', ...different].map((name) => `<th scope="col">${escaped(name)}</th>`).join('')
  const rows = variants.map(
    ({ name, facts }) =>
      `<tr><td>${escaped(name)}</td>${different.map((fact) => `<td>${escaped(facts[fact] ?? '')}</td>`).join('')}</tr>`,
  )
  return `<h3>What sets the groups of logs apart</h3>
<div class="wide"><table><thead><tr>${head}</tr></thead><tbody>${rows.join('')}</tbody></table></div>
<p class="faint">Only within a group are records put together and agents compared. Everything else that decides an answer is the same.</p>`
}

function logHtml({ variants }: Summary, log: LogFacts): string {
  const { model, engine, machine, resumed } = log
  return `<h3>Log ${escaped(log.name)}${variants.length > 1 ? ` (group ${escaped(variants[log.variant]!.name)})` : ''}</h3>
<pre>${escaped(log.command)}</pre>
${facts([
  ['date', log.date],
  ['machine', machineName(machine)],
  ['model', `${model.name}, SHA-256 ${model.fingerprint ?? 'unknown'}`],
  ['engine', `${engine.engine} ${engine.release}, context of ${engine.context} tokens`],
  ['kvfold', `${log.kvfold}, commit ${log.commit ?? 'unknown'}`],
  ['seed', String(log.seed)],
  ['sampling', Object.keys(log.sampling).length === 0 ? 'as the tasks have it' : JSON.stringify(log.sampling)],
  ['contracts', log.contracts.join(', ')],
  ...(log.embedder === null ? [] : [['embeds with', log.embedder] as const]),
  ...(log.judge === null ? [] : [['judged by', log.judge] as const]),
  ['records', `${log.answers} answers, ${log.errors} errors`],
  ...(resumed.length === 0
    ? []
    : [
        [
          'went on',
          resumed.map(({ date, other }) => (other.length === 0 ? date : `${date} with ${other.join(', ')}`)).join('; '),
        ] as const,
      ]),
])}`
}

const facts = (pairs: readonly (readonly [string, string])[]): string =>
  `<dl>${pairs.map(([name, value]) => `<dt>${escaped(name)}</dt><dd>${escaped(value)}</dd>`).join('')}</dl>`

const json = (value: unknown): string => escaped(JSON.stringify(value))
