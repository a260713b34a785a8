/** `--out`: the one name of the option for the file or folder that a command writes. */
import { Option, type Command } from 'commander'
import { KvfoldError } from '../core/errors.js'

/**
 * Adds `-o, --out`. `earlier`: the name under which the option was known, without dashes; it still works, and the value is found under it.
 */
export function addOut(
  command: Command,
  value: '<file>' | '<folder>',
  description: string,
  earlier: string,
  usual?: string,
): void {
  const out = new Option(`-o, --out ${value}`, description)
  out.attributeName = () => earlier
  command.addOption(usual === undefined ? out : out.default(usual)).addOption(new Option(`--${earlier} ${value}`).hideHelp())
}

/** The place that a command got as an argument or by `--out`. @throws KvfoldError cli/bad-usage when it got none, or two */
export function placeOf(argument: string | undefined, out: string | undefined, what: string): string {
  if (argument !== undefined && out !== undefined)
    throw new KvfoldError('cli/bad-usage', `Give the ${what} once: as an argument or by --out.`)
  const place = argument ?? out
  if (place === undefined) throw new KvfoldError('cli/bad-usage', `Give the ${what} to write, by --out.`)
  return place
}
