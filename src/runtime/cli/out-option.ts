/** `--out`: the option for the file or folder that a command writes. */
import { Option, type Command } from 'commander'
import { KvfoldError } from '../core/errors.js'

/**
 * Adds `-o, --out`. `earlier`: an older name of the option, without dashes. That name still works, and the flags have the value under it.
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

/**
 * Returns the file or folder to write, given as an argument or by `--out`. @throws KvfoldError cli/bad-usage when neither or both are given
 */
export function placeOf(argument: string | undefined, out: string | undefined, what: string): string {
  if (argument !== undefined && out !== undefined)
    throw new KvfoldError('cli/bad-usage', `Give the ${what} once: as an argument or by --out.`)
  const place = argument ?? out
  if (place === undefined) throw new KvfoldError('cli/bad-usage', `Give the ${what} to write, by --out.`)
  return place
}
