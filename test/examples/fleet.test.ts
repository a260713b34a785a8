/**
 * Tests the fleets of examples/fleet: their options for kvfold are valid, and their parts name each other. Neither Docker nor Kubernetes is
 * run.
 */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { Command } from 'commander'
import { describe, expect, it } from 'vitest'
import { parseAllDocuments } from 'yaml'
import { addServe } from '../../src/runtime/cli/commands/serve.js'
import type { Shell } from '../../src/runtime/cli/shell.js'
import { serving } from '../runtime/server/support/serving.js'

const read = (name: string): unknown[] =>
  parseAllDocuments(readFileSync(join(import.meta.dirname, '../../examples/fleet', name), 'utf8'), { merge: true }).map(
    (each) => {
      expect(each.errors).toEqual([])
      return each.toJS() as unknown
    },
  )

/**
 * Parses the arguments of `kvfold serve`.
 * @throws CommanderError for an unknown option, or a missing or invalid value
 */
function served(args: readonly string[]): Record<string, unknown> {
  const program = new Command().exitOverride()
  addServe(program, {} as Shell, 'test')
  const [serve] = program.commands
  serve!.exitOverride().configureOutput({ writeErr: () => undefined })
  serve!.action(() => undefined)
  // These are the arguments in the image's entry point.
  program.parse(['serve', '--host', '0.0.0.0', '--port', '8080', ...args], { from: 'user' })
  return serve!.opts()
}

interface Service {
  readonly image: string
  readonly command?: readonly string[]
  readonly secrets?: readonly string[]
}

interface Kind {
  readonly kind: string
  readonly metadata: { readonly name: string }
  readonly spec: {
    readonly replicas?: number
    readonly serviceName?: string
    readonly selector?: { readonly app?: string; readonly matchLabels?: { readonly app: string } }
    readonly template?: {
      readonly metadata: { readonly labels: { readonly app: string } }
      readonly spec: { readonly containers: readonly Container[]; readonly volumes: readonly { readonly name: string }[] }
    }
  }
}

interface Container {
  readonly image: string
  readonly args: readonly string[]
  readonly ports: readonly { readonly name: string; readonly containerPort: number }[]
  readonly readinessProbe: Probe
  readonly livenessProbe?: Probe
  readonly volumeMounts: readonly { readonly name: string }[]
}

interface Probe {
  readonly httpGet: { readonly path: string; readonly port: string }
}

const hostOf = (url: string): string => new URL(url).host

describe('examples/fleet', () => {
  it('of Docker Compose names only existing options and machines', () => {
    const [file] = read('compose.yaml') as [{ services: Record<string, Service>; secrets: object }]
    const own = Object.entries(file.services).filter(([, { image }]) => image === 'kvfold')
    expect(own.map(([name]) => name)).toEqual(['engine-1', 'engine-2', 'engine-3', 'front-1', 'front-2'])
    for (const [name, { command = [], secrets = [] }] of own) {
      const options = served(command) as { engine?: string[]; store?: string; apiKeysFile?: string }
      for (const url of options.engine ?? [])
        expect(Object.keys(file.services).map((each) => `${each}:8080`)).toContain(hostOf(url))
      expect(options.engine?.length ?? 0, name).toBe(name.startsWith('front') ? 3 : 0)
      for (const secret of secrets) expect(Object.keys(file.secrets)).toContain(secret)
      if (name.startsWith('front')) {
        expect(hostOf(options.store!.replace('postgres:', 'http:'))).toBe('database:5432')
        expect(secrets.map((secret) => `/run/secrets/${secret}`)).toContain(options.apiKeysFile)
      }
    }
  })

  it('of Kubernetes names only existing options, routes and machines', async () => {
    const kinds = read('kubernetes.yaml') as Kind[]
    expect(kinds.map(({ kind, metadata }) => `${kind} ${metadata.name}`)).toEqual([
      ...['Service engine', 'StatefulSet engine', 'Deployment front', 'Service kvfold', 'NetworkPolicy engine'],
    ])
    const [service, engine, front, entrance] = kinds as [Kind, Kind, Kind, Kind]
    const at = await serving({ slots: 1 })
    try {
      for (const { spec } of [engine, front]) {
        const { metadata, spec: pod } = spec.template!
        const [{ args, ports, readinessProbe, livenessProbe, volumeMounts }] = pod.containers as [Container]
        expect(spec.selector?.matchLabels).toEqual(metadata.labels)
        for (const { name } of volumeMounts) expect(pod.volumes.map((volume) => volume.name)).toContain(name)
        for (const { httpGet } of [readinessProbe, ...(livenessProbe === undefined ? [] : [livenessProbe])]) {
          expect(ports).toContainEqual({ name: httpGet.port, containerPort: 8080 })
          expect((await fetch(`${at.url}${httpGet.path}`)).status).toBe(200)
        }
        served(args)
      }
    } finally {
      await at.close()
    }
    const { engine: urls } = served(front.spec.template!.spec.containers[0]!.args) as { engine: string[] }
    const names = Array.from(
      { length: engine.spec.replicas! },
      (_, pod) => `${engine.metadata.name}-${pod}.${engine.spec.serviceName!}:8080`,
    )
    expect(urls.map(hostOf)).toEqual(names)
    expect(service.metadata.name).toBe(engine.spec.serviceName)
    expect(service.spec.selector).toEqual(engine.spec.template!.metadata.labels)
    expect(entrance.spec.selector).toEqual(front.spec.template!.metadata.labels)
  })
})
