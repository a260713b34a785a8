/** Reads the configuration file of MCP servers, in the `mcpServers` format that MCP hosts share. */
import { resolve } from 'node:path'
import Type, { type Static } from 'typebox'
import { KvfoldError } from '../core/errors.js'
import { checked, inWords, Text } from '../core/schema.js'

/** How to reach a server: a process to start, or an HTTP address. */
export type McpPlace =
  | {
      readonly kind: 'process'
      readonly command: string
      readonly args: readonly string[]
      /**
       * Environment variables of the server's process, besides those that every process needs (`PATH`, `HOME` and similar). It gets no
       * others of kvfold's environment.
       */
      readonly env: Readonly<Record<string, string>>
      readonly cwd: string | null
    }
  | {
      readonly kind: 'http'
      readonly url: URL
      readonly headers: Readonly<Record<string, string>>
      readonly credentials: McpCredentials | null
    }

/** OAuth client credentials for an HTTP server. */
export interface McpCredentials {
  readonly clientId: string
  readonly clientSecret: string
  readonly scope: string | null
  /** The only authorization server that gets the credentials. */
  readonly issuer: string
}

export interface McpServerConfig {
  readonly name: string
  readonly place: McpPlace
  /** Absolute paths of the folders to which the server should keep (MCP roots). Empty: no list of folders is sent. */
  readonly roots: readonly string[]
  /** The most milliseconds of a call. The server's start may take as long, but at least a minute. */
  readonly timeout: number
  /** The most characters of a result that are added to the conversation. */
  readonly outputLimit: number
}

export const DEFAULT_TIMEOUT = 60_000
export const DEFAULT_OUTPUT_LIMIT = 20_000

/** The longest timeout of Node, in milliseconds. A longer one would fire at once. */
const LONGEST_TIMEOUT = 2 ** 31 - 1

/** One server in the file. Fields that only other hosts use are ignored. */
const Server = Type.Object({
  type: Type.Optional(Type.Enum(['stdio', 'http', 'streamable-http', 'streamableHttp'])),
  disabled: Type.Optional(Type.Boolean()),
  command: Type.Optional(Text),
  args: Type.Optional(Type.Array(Type.String())),
  env: Type.Optional(Type.Record(Type.String(), Type.String())),
  cwd: Type.Optional(Text),
  url: Type.Optional(Text),
  headers: Type.Optional(Type.Record(Type.String(), Type.String())),
  oauth: Type.Optional(
    Type.Object({
      clientId: Text,
      clientSecret: Text,
      scope: Type.Optional(Text),
      issuer: Text,
    }),
  ),
  roots: Type.Optional(Type.Array(Text)),
  timeout: Type.Optional(Type.Number({ minimum: 1, maximum: LONGEST_TIMEOUT })),
  outputLimit: Type.Optional(Type.Integer({ minimum: 100 })),
})
const File = Type.Object({ mcpServers: Type.Record(Type.String(), Server) })

type GivenServer = Static<typeof Server>

/**
 * Returns the servers in a configuration file, without disabled ones. `${NAME}` and `${NAME:-default}` are replaced by variables of
 * `environment`; paths are relative to `folder`.
 * @throws KvfoldError cli/bad-usage for an invalid file and for an unset variable; the message never contains a variable's value
 */
export function parseMcpConfig(
  text: string,
  { file, folder, environment }: { file: string; folder: string; environment: Readonly<Record<string, string | undefined>> },
): readonly McpServerConfig[] {
  const wrong = (what: string): never => {
    throw new KvfoldError('cli/bad-usage', `${file} given to --mcp-config: ${what}`)
  }
  let json: unknown
  try {
    json = JSON.parse(text)
  } catch (error) {
    wrong(`it is not JSON (${error instanceof Error ? error.message : String(error)}).`)
  }
  const read = checked(File, json)
  if (!read.ok) return wrong(`${inWords(read.faults[0])}. It should look like {"mcpServers": {"name": {"command": ...}}}.`)
  return Object.entries(read.value.mcpServers)
    .filter(([, { disabled }]) => disabled !== true)
    .map(([name, given]) => {
      const faulty = (what: string): never => wrong(`mcpServers.${name}${what}`)
      const expand = <T>(value: T, path: string): T => expanded(value, path, environment, faulty) as T
      const { roots = [], timeout = DEFAULT_TIMEOUT, outputLimit = DEFAULT_OUTPUT_LIMIT } = given
      const folders = expand(roots, '.roots').map((root) => resolve(folder, root))
      return { name, place: placeOf(given, folder, expand, faulty), roots: folders, timeout, outputLimit }
    })
}

function placeOf(
  given: GivenServer,
  folder: string,
  expand: <T>(value: T, path: string) => T,
  faulty: (what: string) => never,
): McpPlace {
  const { type, command, url } = given
  if ((command === undefined) === (url === undefined))
    faulty(': it needs either "command" (a process) or "url" (Streamable HTTP).')
  if (command !== undefined) {
    if (type !== undefined && type !== 'stdio') faulty(`: it has a "command", so its type must be stdio, not ${type}.`)
    const { args = [], env = {}, cwd } = given
    return {
      kind: 'process',
      command: expand(command, '.command'),
      args: expand(args, '.args'),
      env: expand(env, '.env'),
      cwd: cwd === undefined ? null : resolve(folder, expand(cwd, '.cwd')),
    }
  }
  if (type === 'stdio') faulty(': it has a "url", so its type cannot be stdio.')
  const address = expand(url!, '.url')
  const parsed = URL.canParse(address) ? new URL(address) : faulty(`.url: ${JSON.stringify(url)} is not a URL.`)
  if (!/^https?:$/.test(parsed.protocol)) faulty(`.url: it must begin with http:// or https://.`)
  const { headers = {}, oauth } = given
  const credentials = oauth === undefined ? null : expand(oauth, '.oauth')
  return {
    kind: 'http',
    url: parsed,
    headers: expand(headers, '.headers'),
    credentials: credentials && { ...credentials, scope: credentials.scope ?? null },
  }
}

/** Replaces `${NAME}` in all strings of a value, also inside lists and objects. */
function expanded(
  value: unknown,
  path: string,
  environment: Readonly<Record<string, string | undefined>>,
  faulty: (what: string) => never,
): unknown {
  const inside = (part: unknown, name: string): unknown => expanded(part, `${path}.${name}`, environment, faulty)
  if (Array.isArray(value)) return value.map((part, at) => inside(part, String(at)))
  if (typeof value === 'object' && value !== null)
    return Object.fromEntries(Object.entries(value).map(([name, part]) => [name, inside(part, name)]))
  if (typeof value !== 'string') return value
  return value.replace(
    /\$\{([A-Za-z_]\w*)(?::-([^}]*))?\}/g,
    (_all, name: string, otherwise: string | undefined) =>
      environment[name] ??
      otherwise ??
      faulty(`${path}: the environment variable ${name} is not set; set it, or write a default as \${${name}:-value}.`),
  )
}
