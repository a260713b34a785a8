/**
 * The routers to compare our affinity with, each between a front and its engines: a random router, and other projects' routers as processes
 * of their published packages (scripts/engine-parts.mjs installs them).
 */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { createServer, request as httpRequest } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { Random } from '../../../src/runtime/core/random.js'
import { startServer } from '../../server-process.js'
import { lacks, pythonOf } from './parts.js'

export interface Router {
  readonly url: string
  close(): Promise<void>
}

/** A kind of router; `name` is its name in the table. */
export interface Kind {
  readonly name: string
  /** The header in which the front names the conversation; null: the router reads the text itself, or nothing. */
  readonly header: string | null
  /** Why the router cannot run here; null: it can. */
  readonly missing: string | null
  start(engines: readonly string[], seed: number): Promise<Router>
}

/** Milliseconds that a router has to find its engines. */
const FINDING = 30_000

/** The Rust routers that derive from SGLang's; they share a command line. */
const rusty = (name: string, venv: string, module: string, header: string | null, words: readonly string[]): Kind => ({
  name,
  header,
  missing: lacks(pythonOf(venv)),
  start: async (engines) => {
    const server = await startServer(name, pythonOf(venv), (port) => [
      ...['-m', module, '--host', '127.0.0.1', '--port', String(port), '--prometheus-port', String(port + 1)],
      ...['--log-level', 'error', ...words, '--worker-urls', ...engines],
    ])
    await found(server.url)
    return server
  },
})

const nginx = '/usr/sbin/nginx'

export const ROUTERS: readonly Kind[] = [
  { name: 'random choice', header: null, missing: null, start: randomRouter },
  rusty("SGLang's gateway 0.3.2, cache_aware", 'routers', 'sglang_router.launch_router', null, ['--policy', 'cache_aware']),
  rusty("SGLang's gateway 0.3.2, manual", 'routers', 'sglang_router.launch_router', 'X-SMG-Routing-Key', [
    ...['--policy', 'manual', '--assignment-mode', 'min_load'],
  ]),
  rusty('vLLM router 0.1.17, consistent_hash', 'routers', 'vllm_router.launch_router', 'X-Session-ID', [
    ...['--policy', 'consistent_hash'],
  ]),
  { name: 'nginx, consistent hash', header: 'X-Session-ID', missing: lacks(nginx), start: startNginx },
]

/** Waits until a router that is listening knows an engine. @throws Error if it finds none in time */
async function found(url: string): Promise<void> {
  const limit = performance.now() + FINDING
  for (;;) {
    const answer = await fetch(`${url}/v1/models`).catch(() => null)
    const listed = answer?.ok === true ? ((await answer.json()) as { data?: unknown[] }) : {}
    if ((listed.data?.length ?? 0) > 0) return
    if (performance.now() > limit) throw new Error(`The router at ${url} found no engine within ${FINDING / 1000} s.`)
    await sleep(100)
  }
}

async function startNginx(engines: readonly string[]): Promise<Router> {
  const folder = mkdtempSync(join(tmpdir(), 'kvfold-nginx-'))
  const configured = (port: number) => `
daemon off; master_process off; worker_processes 1; pid ${folder}/pid; error_log ${folder}/error.log;
events { worker_connections 1024; }
http {
  access_log off; client_max_body_size 64m; client_body_temp_path ${folder}/body; proxy_temp_path ${folder}/proxy;
  fastcgi_temp_path ${folder}/fastcgi; uwsgi_temp_path ${folder}/uwsgi; scgi_temp_path ${folder}/scgi;
  upstream engines {
    hash $http_x_session_id consistent;
    ${engines.map((url) => `server ${new URL(url).host};`).join(' ')}
  }
  server {
    listen 127.0.0.1:${port};
    location / { proxy_pass http://engines; proxy_http_version 1.1; proxy_set_header Host $http_host; proxy_buffering off; proxy_read_timeout 600s; }
  }
}`
  const server = await startServer('nginx', nginx, (port) => {
    writeFileSync(join(folder, 'nginx.conf'), configured(port))
    return ['-c', join(folder, 'nginx.conf'), '-p', folder]
  })
  const close = async () => {
    await server.close()
    rmSync(folder, { recursive: true, force: true })
  }
  return { url: server.url, close }
}

/** Starts a router that sends each request to a random engine (seeded), whatever its conversation. */
export async function randomRouter(engines: readonly string[], seed: number): Promise<Router> {
  const random = new Random(seed)
  const server = createServer((asked, answer) => {
    const to = new URL(asked.url ?? '/', engines[random.below(engines.length)])
    const headers = { ...asked.headers, connection: 'keep-alive', host: to.host }
    const sent = httpRequest(to, { method: asked.method, headers }, (response) => {
      answer.writeHead(response.statusCode ?? 502, response.headers)
      response.pipe(answer)
    })
    sent.on('error', () => answer.destroy())
    answer.on('close', () => sent.destroy())
    asked.pipe(sent)
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    close: () => {
      server.closeAllConnections()
      return new Promise((resolve) =>
        server.close(() => {
          resolve()
        }),
      )
    },
  }
}
