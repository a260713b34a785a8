/** Tests how a served model is sampled by default, with the recommendations of its file. */
import { describe, expect, it } from 'vitest'
import { LLAMA_SERVER_SAMPLING, samplingDefaultsOf } from '../../../src/runtime/engine/sampling-defaults.js'

const of = (said: Readonly<Record<string, string>>) =>
  samplingDefaultsOf(Object.fromEntries(Object.entries(said).map(([name, value]) => [`general.sampling.${name}`, value])), 4096)

describe('sampling defaults', () => {
  it("are llama-server's if the file says nothing", () => {
    expect(of({})).toEqual({ temperature: 0.8, topK: 40, topP: 0.95, minP: 0.05 })
    expect(of({})).toEqual(LLAMA_SERVER_SAMPLING)
  })

  it("are the file's, each by itself", () => {
    expect(of({ temp: '0.6', top_k: '20' })).toEqual({ ...LLAMA_SERVER_SAMPLING, temperature: 0.6, topK: 20 })
    expect(of({ top_p: '0.800000', min_p: '0', penalty_repeat: '1.05', penalty_last_n: '128' })).toEqual({
      ...{ temperature: 0.8, topK: 40, topP: 0.8, minP: 0, repeatPenalty: 1.05, penaltyLastN: 128 },
    })
    expect(of({ penalty_last_n: '-1' }).penaltyLastN).toBe(4096)
  })

  it("have mirostat with llama.cpp's numbers", () => {
    expect(of({ mirostat: '2' }).mirostat).toEqual({ version: 2, tau: 5, eta: 0.1 })
    expect(of({ mirostat: '1', mirostat_tau: '3', mirostat_eta: '0.2' }).mirostat).toEqual({ version: 1, tau: 3, eta: 0.2 })
    expect(of({ mirostat: '0', mirostat_tau: '3' }).mirostat).toBeUndefined()
  })

  it.each<[string, string, object]>([
    ['temp', 'warm', { temperature: 0.8 }],
    ['temp', '-1', { temperature: 0 }],
    ['top_k', '-1', { topK: 0 }],
    ['top_k', '20.7', { topK: 20 }],
    ['top_p', '7', { topP: 1 }],
    ['penalty_repeat', '0', { repeatPenalty: 0.001 }],
  ])('limit %s = %s to what the sampler accepts', (name, value, expected) => {
    expect(of({ [name]: value })).toMatchObject(expected)
  })

  it.each<[string, object]>([
    ['top_k;temperature', { temperature: 0.8, topK: 40, topP: 1, minP: 0, repeatPenalty: 1 }],
    ['penalties;Top-P;min-p;temp', { temperature: 0.8, topK: 0, topP: 0.95, minP: 0.05 }],
    ['top_k', { temperature: 1, topK: 40, topP: 1, minP: 0, repeatPenalty: 1 }],
    ['none;of;these', LLAMA_SERVER_SAMPLING],
  ])('turn off samplers that the sequence %s leaves out', (sequence, expected) => {
    expect(of({ sequence })).toEqual(expected)
  })
})
