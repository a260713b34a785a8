/** Lists the commands that the laboratory adds to the command line. */
import type { Commands } from '../../runtime/cli/command-line.js'

export const commands: Commands = {
  'Talk to a model': {
    demo: async () => (await import('./commands/demo.js')).addDemo,
  },
  Studies: {
    attention: async () => (await import('./commands/attention.js')).addAttention,
    eval: async () => (await import('./commands/eval.js')).addEval,
    collect: async () => (await import('./commands/collect.js')).addCollect,
    report: async () => (await import('./commands/report.js')).addReport,
  },
}
