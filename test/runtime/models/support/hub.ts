/** A server that answers as the Hugging Face hub does: the list of a repository's files, and their bytes behind a redirect. */
import { createHash } from 'node:crypto'
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'

export interface HubFile {
  readonly bytes: Buffer
  /** What the hub announces instead of the hash of the bytes. */
  readonly announced?: string
}

export interface FakeHub {
  readonly url: string
  /** Requests to the server of the bytes: the range and the authorization of each. */
  readonly fetched: readonly { readonly range: string | undefined; readonly authorization: string | undefined }[]
  /** How many requests the hub itself got. */
  readonly asked: readonly string[]
  /** Bytes after which each of the next answers breaks off; an answer without an entry comes whole. */
  breaks: number[]
  /** The statuses of the next answers with bytes; 0: as usual. */
  statuses: number[]
  /** Whether the server of the bytes knows ranges. */
  ranges: boolean
  close(): Promise<void>
}

const sha256 = (bytes: Buffer): string => createHash('sha256').update(bytes).digest('hex')

/** @param repositories files by their paths, by `owner/repository`, or `owner/repository#revision` @param token the only one that may read `private/...` and `gated/...` */
export async function fakeHub(
  repositories: Readonly<Record<string, Readonly<Record<string, HubFile>>>>,
  token = 'hf_secret',
): Promise<FakeHub> {
  const fetched: { range: string | undefined; authorization: string | undefined }[] = []
  const asked: string[] = []
  const files = new Map(
    Object.values(repositories).flatMap((each) => Object.values(each).map((file) => [sha256(file.bytes), file])),
  )

  const bytes = createServer((request, answer) => {
    const { range, authorization } = request.headers
    fetched.push({ range, authorization })
    const status = hub.statuses.shift() ?? 0
    if (status !== 0) {
      answer.writeHead(status).end()
      return
    }
    const file = files.get(request.url!.slice(1))!
    const from = hub.ranges ? Number(/^bytes=(\d+)-/.exec(range ?? '')?.[1] ?? 0) : 0
    const size = file.bytes.length
    if (from >= size) {
      answer.writeHead(416, { 'content-range': `bytes */${size}` }).end()
      return
    }
    const part = file.bytes.subarray(from)
    answer.writeHead(from > 0 ? 206 : 200, {
      'content-length': part.length,
      ...(from > 0 ? { 'content-range': `bytes ${from}-${size - 1}/${size}` } : {}),
    })
    const end = hub.breaks.shift()
    if (end === undefined) answer.end(part)
    else
      answer.write(part.subarray(0, end), () => {
        setTimeout(() => answer.destroy(), 20)
      })
  })
  const place = await listening(bytes)

  const list = (request: IncomingMessage, answer: ServerResponse) => {
    asked.push(request.url!)
    const path = decodeURIComponent(request.url!.split('?')[0]!)
    const [, repository = '', revision = '', file] =
      /^\/api\/models\/([^/]+\/[^/]+)\/tree\/([^/]+)$/.exec(path) ?? /^\/([^/]+\/[^/]+)\/resolve\/([^/]+)\/(.+)$/.exec(path) ?? []
    const known = repositories[revision === 'main' ? repository : `${repository}#${revision}`]
    const isClosed = /^(?:private|gated)\//.test(repository) && request.headers.authorization !== `Bearer ${token}`
    const refuse = (status: number) => answer.writeHead(status, { 'content-type': 'application/json' }).end('{"error":"no"}')
    if (isClosed) refuse(repository.startsWith('gated') ? 403 : 401)
    else if (known === undefined) refuse(404)
    else if (file === undefined)
      answer.writeHead(200, { 'content-type': 'application/json' }).end(
        JSON.stringify([
          { type: 'file', path: 'README.md', size: 3, oid: 'a' },
          ...Object.entries(known).map(([name, { bytes: content, announced = sha256(content) }]) => ({
            ...{ type: 'file', path: name, size: content.length, oid: 'b' },
            lfs: { oid: announced, size: content.length, pointerSize: 130 },
          })),
        ]),
      )
    else if (known[file] === undefined) refuse(404)
    else {
      const { bytes: content, announced = sha256(content) } = known[file]
      answer
        .writeHead(302, {
          location: `${place}/${sha256(content)}`,
          'x-linked-etag': `"${announced}"`,
          'x-linked-size': content.length,
        })
        .end()
    }
  }
  const front = createServer(list)
  const hub: FakeHub = {
    ...{ url: await listening(front), fetched, asked, breaks: [], statuses: [], ranges: true },
    close: async () => {
      await Promise.all([front, bytes].map((server) => closed(server)))
    },
  }
  return hub
}

/** Another host name for the bytes, so that the redirect leaves the origin. */
const listening = (server: Server): Promise<string> =>
  new Promise((resolve) => {
    server.listen(0, '127.0.0.1', () => {
      resolve(`http://127.0.0.1:${(server.address() as AddressInfo).port}`)
    })
  })

const closed = (server: Server): Promise<void> =>
  new Promise((resolve) => {
    server.closeAllConnections()
    server.close(() => {
      resolve()
    })
  })
