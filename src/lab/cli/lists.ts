/** The options of commands that take lists of names, `--contract` among them. */
import { type Command, InvalidArgumentError } from 'commander'

/** Returns a commander parser for lists of names. It keeps the given order and drops repetitions. `all`: the word for all names. */
export function oneOf<Name extends string>(names: readonly Name[], all?: string): (text: string) => readonly Name[] {
  return (text) => {
    if (text === all) return names
    const asked = [...new Set(text.split(',').map((part) => part.trim()))]
    const wrong = asked.find((name) => !(names as readonly string[]).includes(name))
    if (wrong === undefined) return asked as Name[]
    const every = all === undefined ? '' : `, or ${all}`
    throw new InvalidArgumentError(
      `${wrong || 'The empty name'} is not allowed; give one or several of ${names.join(', ')}, separated by commas${every}.`,
    )
  }
}

/** Lets the `--contract` of a command take a list of names. @param standard the names when the option is not given */
export function listContracts<Name extends string>(
  command: Command,
  about: string,
  names: readonly Name[],
  standard: readonly Name[],
): void {
  const contract = command.options.find((option) => option.attributeName() === 'contract')!
  delete contract.argChoices
  contract.argParser(oneOf(names)).description = about
  contract.default(standard, standard.join(','))
  command.setOptionValueWithSource('contract', standard, 'default')
}
