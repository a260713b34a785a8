/** Owns the formats of JSON schemas, as patterns of the whole text. */

const SIXTY = '[0-5]\\d'
const TIME = `(?:[01]\\d|2[0-3]):${SIXTY}:${SIXTY}(?:\\.\\d{1,9})?(?:Z|[+-](?:[01]\\d|2[0-3]):${SIXTY})`
const DATE =
  '(?:\\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|02-(?:0[1-9]|1\\d|2[0-8]))' +
  '|\\d{2}(?:0[48]|[2468][048]|[13579][26])-02-29)'
const LABEL = '[A-Za-z0-9]{1,20}(?:-[A-Za-z0-9]{1,20}){0,2}'
const BYTE = '(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)'
const HEX = '[0-9a-fA-F]'
const PATH = '[A-Za-z0-9._~!$&()*+,;=:@/-]'

/** What a format's texts are; a few formats say nothing about texts. */
export const FORMATS: Readonly<Record<string, string | null>> = {
  date: DATE,
  time: TIME,
  'date-time': `${DATE}T${TIME}`,
  duration:
    'P(?:\\d{1,4}W|(?:\\d{1,4}Y(?:\\d{1,2}M(?:\\d{1,3}D)?)?|\\d{1,2}M(?:\\d{1,3}D)?|\\d{1,3}D)(?:T(?:\\d{1,2}H(?:\\d{1,2}M(?:\\d{1,2}S)?)?|\\d{1,2}M(?:\\d{1,2}S)?|\\d{1,2}S))?' +
    '|T(?:\\d{1,2}H(?:\\d{1,2}M(?:\\d{1,2}S)?)?|\\d{1,2}M(?:\\d{1,2}S)?|\\d{1,2}S))',
  uuid: `${HEX}{8}-${HEX}{4}-${HEX}{4}-${HEX}{4}-${HEX}{12}`,
  email: `[A-Za-z0-9_+-]{1,32}(?:\\.[A-Za-z0-9_+-]{1,32}){0,3}@(?:${LABEL}\\.){1,3}[A-Za-z]{2,12}`,
  hostname: `${LABEL}(?:\\.${LABEL}){0,4}`,
  ipv4: `${BYTE}(?:\\.${BYTE}){3}`,
  ipv6: `(?:${HEX}{1,4}:){7}${HEX}{1,4}|(?:${HEX}{1,4}:){1,3}:${HEX}{1,4}|::${HEX}{1,4}|::`,
  uri: `[a-z][a-z0-9+.-]{0,15}://${LABEL}(?:\\.${LABEL}){0,4}(?::[1-9]\\d{0,3})?(?:/${PATH}*)?(?:\\?${PATH}*)?(?:#${PATH}*)?`,
  url: `https?://(?:${LABEL}\\.){1,4}[A-Za-z]{2,12}(?::[1-9]\\d{1,3})?(?:/${PATH}*(?:\\?${PATH}*)?(?:#${PATH}*)?)?`,
  'json-pointer': '(?:/[A-Za-z0-9_.-]*)*',
  byte: '(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?',
  password: null,
  binary: null,
}
