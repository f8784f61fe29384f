-- A dissector for meshmsg's multicast packets, for Wireshark and tshark.
--
--     tshark -X lua_script:meshmsg.lua -r capture.pcap -Y meshmsg
--
-- docs/wireshark.md says how to install it and lists the fields to filter by; docs/wire-format.md
-- is the specification, and the names here are the names there.  It runs under Lua 5.2 (Wireshark
-- before 4.4) and 5.4 (since then), which is why it keeps to what both of them have.

local meshmsg = Proto("meshmsg", "meshmsg multicast")

local MAGIC = "MMP1"
local SEALED_MAGIC = "MME1"
local FRAME_MAGIC = "MMF1"
local DATA, REPAIR, HEARTBEAT, NACK, CONFIRM, STATUS, PARITY = 1, 2, 3, 4, 5, 6, 7
local KINDS = {
  [DATA] = "Data",
  [REPAIR] = "Repair",
  [HEARTBEAT] = "Heartbeat",
  [NACK] = "NACK",
  [CONFIRM] = "Confirm",
  [STATUS] = "Status",
  [PARITY] = "Parity",
}

local HEAD_BYTES = 32
local DATA_HEAD_BYTES = 48
local HEARTBEAT_BYTES = 60
local STATUS_BYTES = 50
local PARITY_HEAD_BYTES = 40
local RANGE_BYTES = 12
local FRAME_HEAD_BYTES = 64
local CHECK_BYTES = 4
local TAG_BYTES = 16

local NUMBER_MAX = UInt64(0, 0x40000000) -- 2^62
local EPOCH_MAX = UInt64(0, 0x80000000) -- 2^63
local FRAME_BYTES_MAX = 32 * 1024 * 1024
local RANGES_MAX = 100
local PARITY_DATA_MAX = 128
local PARITY_EXTRA_MAX = 64

-- What the Info column has room for.
local INFO_RANGES_MAX = 6
local INFO_PACKETS_MAX = 3

-- Fields ----------------------------------------------------------------------------------------

local fields = {}
meshmsg.fields = {}

local function field(name, kind, label, ...)
  local made = ProtoField[kind]("meshmsg." .. name, label, ...)
  fields[name] = made
  table.insert(meshmsg.fields, made)
end

local CHECKS = { [0] = "Bad", [1] = "Good", [2] = "Unverified" }

field("magic", "string", "Magic")
field("kind", "uint8", "Kind", base.DEC, KINDS)
field("flags", "uint8", "Flags", base.HEX)
field("stream", "uint64", "Stream", base.HEX)
field("epoch", "uint64", "Epoch", base.DEC)
field("check", "uint32", "Checksum", base.HEX)
field("check.status", "uint8", "Checksum status", base.DEC, CHECKS)

field("sealed", "bytes", "Sealed")
field("sealed.sender", "uint64", "Sender", base.HEX)
field("sealed.generation", "uint16", "Generation of the key, its lowest bits", base.DEC)
field("sealed.counter", "uint64", "Packets that the sender sealed before", base.DEC)
field("sealed.tag", "bytes", "Tag")

field("number", "uint64", "Packet number", base.DEC)
field("place", "uint16", "Place in the frame", base.DEC)
field("packets", "uint16", "Packets of the frame", base.DEC)
field("first_event", "uint64", "First event of the frame", base.DEC)
field("events", "uint16", "Events of the frame", base.DEC)
field("frame_bytes", "uint32", "Bytes of the frame", base.DEC)
field("payload", "bytes", "Payload")

field("nack.asker", "uint64", "Asking receiver", base.HEX)
field("confirm.receivers", "uint64", "Receivers", base.DEC)
field("nack.ranges", "uint16", "Ranges", base.DEC)
field("nack.packets", "uint64", "Packets asked for", base.DEC)
field("nack.range", "string", "Range")
field("nack.range.first", "uint64", "First packet", base.DEC)
field("nack.range.count", "uint32", "Packets", base.DEC)

field("beat.first", "uint64", "First packet kept", base.DEC)
field("beat.next", "uint64", "Next packet", base.DEC)
field("beat.first_event", "uint64", "First event kept", base.DEC)
field("beat.next_event", "uint64", "Next event", base.DEC)
field("beat.receivers", "uint16", "Receivers known", base.DEC)
field("beat.ends", "bool", "Ends: nothing more will come", 8, nil, 1)
field("beat.answers", "bool", "Answers a request", 8, nil, 2)

field("status.next", "uint64", "Has all packets before", base.DEC)
field("status.receiver", "uint64", "Receiver", base.HEX)
field("status.window", "uint32", "Room, in bytes", base.DEC)
field("status.leaves", "bool", "The receiver leaves", 8, nil, 1)

field("parity.first", "uint64", "First packet protected", base.DEC)
field("parity.packets", "uint16", "Packets protected", base.DEC)
field("parity.place", "uint16", "Place of the block", base.DEC)
field("parity.extra", "uint16", "Parity blocks there are", base.DEC)
field("parity.length", "uint16", "Bytes of the block", base.DEC)
field("parity.block", "bytes", "Block")

field("frame", "none", "Frame")
field("frame.stream", "uint64", "Stream", base.HEX)
field("frame.magic", "string", "Magic")
field("frame.check", "uint32", "Checksum", base.HEX)
field("frame.check.status", "uint8", "Checksum status", base.DEC, CHECKS)
field("frame.length", "uint32", "Length", base.DEC)
field("frame.count", "uint32", "Events", base.DEC)
field("frame.epoch", "uint64", "Epoch", base.DEC)
field("frame.first", "uint64", "First event", base.DEC)
field("frame.time", "absolute_time", "Time", base.UTC)
field("frame.flags", "uint16", "Sections", base.HEX)
field("frame.flags.topic_index", "bool", "Topic index", 16, nil, 1)
field("frame.flags.times", "bool", "Times", 16, nil, 2)
field("frame.flags.encodings", "bool", "Encodings", 16, nil, 4)
field("frame.flags.raw", "bool", "All raw", 16, nil, 8)
field("frame.flags.keys", "bool", "Keys", 16, nil, 16)
field("frame.flags.headers", "bool", "Headers", 16, nil, 32)
field("frame.topic_count", "uint16", "Topics", base.DEC)
field("frame.table_bytes", "uint32", "Bytes of the topic table", base.DEC)
field("frame.key_bytes", "uint32", "Bytes of keys", base.DEC)
field("frame.header_bytes", "uint32", "Bytes of headers", base.DEC)
field("frame.topic", "string", "Topic")

local FRAME_FLAGS = { "topic_index", "times", "encodings", "raw", "keys", "headers" }

local malformed = ProtoExpert.new(
  "meshmsg.malformed", "Not a packet by the rules of the wire format",
  expert.group.MALFORMED, expert.severity.ERROR
)
local frame_malformed = ProtoExpert.new(
  "meshmsg.frame.malformed", "Not the frame that the packet promises",
  expert.group.MALFORMED, expert.severity.ERROR
)
local checksum_bad = ProtoExpert.new(
  "meshmsg.check.bad", "Checksum differs", expert.group.CHECKSUM, expert.severity.ERROR
)
local cut_short = ProtoExpert.new(
  "meshmsg.cut", "The capture holds only a part of this packet",
  expert.group.UNDECODED, expert.severity.NOTE
)
meshmsg.experts = { malformed, frame_malformed, checksum_bad, cut_short }

meshmsg.prefs.ports = Pref.range(
  "UDP ports", "",
  "Ports whose datagrams are all taken for meshmsg's (on others they are known by their magic)",
  65535
)

-- CRC-32C ---------------------------------------------------------------------------------------

-- Lua 5.2 has a library for bits and no operators, 5.4 has operators and no library.  The source of
-- the operators is text, since 5.2 could not even read it.
local band, bxor, shift
if bit32 then
  band, bxor, shift = bit32.band, bit32.bxor, bit32.rshift
else
  band, bxor, shift = load([[
    return function(a, b) return a & b end, function(a, b) return a ~ b end,
      function(a, n) return a >> n end
  ]])()
end

local crc_table = {}
for byte = 0, 255 do
  local value = byte
  for _ = 1, 8 do
    value = band(value, 1) == 1 and bxor(shift(value, 1), 0x82F63B78) or shift(value, 1)
  end
  crc_table[byte] = value
end

-- The checksum of some bytes, going on from the checksum of those before them.
local function crc32c(bytes, before)
  local value = bxor(before or 0, 0xFFFFFFFF)
  for at = 1, #bytes do
    value = bxor(crc_table[band(bxor(value, bytes:byte(at)), 0xFF)], shift(value, 8))
  end
  return bxor(value, 0xFFFFFFFF)
end

-- Small helpers ---------------------------------------------------------------------------------

local function plural(number, noun)
  local text = tostring(number)
  return text .. " " .. noun .. (text == "1" and "" or "s")
end

-- A half-open range as people read it: "17" or "17-19".
local function span(first, stop)
  local last = stop - 1
  return first == last and tostring(first) or tostring(first) .. "-" .. tostring(last)
end

-- "packets 0-120", "packet 7", or "no packets before 7".
local function span_of(noun, first, stop)
  if first == stop then
    return "no " .. noun .. "s before " .. tostring(stop)
  end
  return noun .. (first + 1 == stop and " " or "s ") .. span(first, stop)
end

-- A packet under dissection: its bytes, where it stands in the tree, and what went wrong.
local Packet = {}
Packet.__index = Packet

function Packet:add(name, offset, length)
  return self.tree:add_le(fields[name], self.tvb(offset, length))
end

-- Text, in bytes that may be anything.  Returns it if it is fit to be shown in a line.
function Packet:add_text(name, offset, length)
  local range = self.tvb(offset, length)
  self.tree:add_packet_field(fields[name], range, ENC_UTF_8)
  local text = range:string(ENC_UTF_8)
  return text == range:raw() and not text:find("%c") and text or nil
end

-- Rounded, for Lua 5.4 writes a whole number that is a float as "1.0".
function Packet:u16(offset)
  return math.floor(self.tvb(offset, 2):le_uint())
end

function Packet:u32(offset)
  return math.floor(self.tvb(offset, 4):le_uint())
end

function Packet:u64(offset)
  return self.tvb(offset, 8):le_uint64()
end

-- Whether so many bytes of the packet are there; notes whether it or the capture lacks them.
function Packet:has(length)
  if self.tvb:len() >= length then
    return true
  end
  if self.length >= length then
    self:cut()
  else
    self:refuse("a packet of " .. self.length .. " bytes")
  end
  return false
end

function Packet:cut()
  if not self.was_cut then
    self.was_cut = true
    self.tree:add_proto_expert_info(cut_short)
  end
end

function Packet:refuse(why, expert_info)
  self.tree:add_proto_expert_info(expert_info or malformed, "Malformed: " .. why)
  if not self.wrong then
    self.wrong = "Malformed: " .. why
  end
end

-- Show a checksum and whether it holds; `covered` is nil where that cannot be told.
function Packet:show_check(name, offset, covered)
  local tree = self:add(name, offset, CHECK_BYTES)
  local found, state = self:u32(offset), 2
  if covered then
    state = crc32c(covered[2] or "", crc32c(covered[1])) == found and 1 or 0
  end
  tree:append_text(" [" .. CHECKS[state]:lower() .. "]")
  tree:add(fields[name .. ".status"], state):set_generated()
  if state == 0 then
    tree:add_proto_expert_info(checksum_bad)
    if not self.wrong then
      self.wrong = name == "check" and "Bad checksum" or "Frame with a bad checksum"
    end
  end
end

-- The checksum at the end of heartbeats, requests and reports.
function Packet:check_end()
  if self.tvb:len() < self.length then
    self:cut()
  elseif self.length >= HEAD_BYTES + CHECK_BYTES then
    local at = self.length - CHECK_BYTES
    self:show_check("check", at, { self.tvb:raw(0, at) })
  end
end

-- Frames ----------------------------------------------------------------------------------------

-- Signed nanoseconds since 1970.
local function frame_time(value)
  local nanoseconds = value % 1000000000
  local seconds = (value - nanoseconds) / 1000000000
  nanoseconds, seconds = nanoseconds:tonumber(), seconds:tonumber()
  if nanoseconds < 0 then
    nanoseconds, seconds = nanoseconds + 1000000000, seconds - 1
  end
  return NSTime.new(seconds, nanoseconds)
end

-- The topic table, as far as it is in this packet.  Returns the first topic.
function Packet:show_topics(at, table_bytes)
  local there = math.min(table_bytes, self.tvb:len() - at)
  local text = there > 0 and self.tvb:raw(at, there) or ""
  local first
  local start = 1
  while start <= #text do
    local stop = text:find("\n", start, true)
    if not stop then
      if there < table_bytes then
        break -- cut off by the packet's end: it would be another topic
      end
      stop = #text + 1
    end
    if stop > start then
      local topic = self:add_text("frame.topic", at + start - 1, stop - start)
      first = first or topic
    end
    start = stop + 1
  end
  return first
end

-- The header of the frame that begins in this packet.  Returns words about it.
function Packet:show_frame(at)
  local have = self.tvb:len() - at
  if have < FRAME_HEAD_BYTES then
    return nil -- cut in small pieces
  end
  local outer = self.tree
  self.tree = outer:add(fields["frame"], self.tvb(at, have))
  self:add("frame.stream", at, 8)
  self:add_text("frame.magic", at + 8, 4)
  if self.tvb:raw(at + 8, 4) ~= FRAME_MAGIC then
    self:refuse("the frame has no magic " .. FRAME_MAGIC, frame_malformed)
    self.tree = outer
    return nil
  end
  local length, count = self:u32(at + 16), self:u32(at + 20)
  local whole = self:u16(44) == 1 and have == length
  local covered
  if whole then
    covered = { self.tvb:raw(at, 12), self.tvb:raw(at + 16, length - 16) }
  end
  self:show_check("frame.check", at + 12, covered)
  self:add("frame.length", at + 16, 4)
  self:add("frame.count", at + 20, 4)
  self:add("frame.epoch", at + 24, 8)
  self:add("frame.first", at + 32, 8)
  local time = self.tvb(at + 40, 8)
  self.tree:add(fields["frame.time"], time, frame_time(time:le_int64()))
  local flags = self:add("frame.flags", at + 48, 2)
  for _, name in ipairs(FRAME_FLAGS) do
    flags:add_le(fields["frame.flags." .. name], self.tvb(at + 48, 2))
  end
  self:add("frame.topic_count", at + 50, 2)
  self:add("frame.table_bytes", at + 52, 4)
  self:add("frame.key_bytes", at + 56, 4)
  self:add("frame.header_bytes", at + 60, 4)
  local topics = self:u16(at + 50)
  local topic = self:show_topics(at + FRAME_HEAD_BYTES, self:u32(at + 52))
  if
    length ~= self:u32(40) or count ~= self:u16(46) or self:u64(at + 32) ~= self:u64(32)
    or self:u64(at) ~= self:u64(8) or self:u64(at + 24) ~= self:u64(16)
  then
    self:refuse("the frame is not the one that the packet promises", frame_malformed)
  end
  self.tree:append_text(": " .. plural(count, "event") .. ", " .. plural(topics, "topic"))
  self.tree = outer
  if topic then
    return topics > 1 and topic .. " and " .. plural(topics - 1, "other") or topic
  end
  return nil
end

-- Kinds -----------------------------------------------------------------------------------------

-- Each gets a packet that has its head, shows the rest and returns what the Info column says.
local show = {}

show[DATA] = function(packet, kind)
  packet:add("number", 24, 8)
  packet:add("place", 6, 2)
  if not packet:has(DATA_HEAD_BYTES) then
    return nil
  end
  packet:add("first_event", 32, 8)
  packet:add("frame_bytes", 40, 4)
  packet:add("packets", 44, 2)
  packet:add("events", 46, 2)
  local number, place, first = packet:u64(24), packet:u16(6), packet:u64(32)
  local frame_bytes, packets, events = packet:u32(40), packet:u16(44), packet:u16(46)
  -- Of a datagram that was captured whole: the rest might have been more packets.
  local whole = packet.tvb:len() == packet.length
  local payload_bytes = whole and packet.length - DATA_HEAD_BYTES or nil
  if not whole then
    packet:cut()
  end
  if place >= packets then
    packet:refuse("place " .. place .. " of " .. packets .. " packets")
  elseif events == 0 then
    packet:refuse("a frame without events")
  elseif payload_bytes == 0 then
    packet:refuse("no payload")
  elseif number < UInt64(place) then
    packet:refuse("the frame begins before packet 0")
  elseif number >= NUMBER_MAX or number + packets >= NUMBER_MAX then
    packet:refuse("packet number out of range")
  elseif first >= NUMBER_MAX or first + events >= NUMBER_MAX then
    packet:refuse("event number out of range")
  elseif frame_bytes > FRAME_BYTES_MAX then
    packet:refuse("a frame over the limit")
  elseif
    frame_bytes < packets or frame_bytes > packets * 65536
    or (payload_bytes or 0) > frame_bytes
  then
    packet:refuse("a frame of " .. frame_bytes .. " bytes in " .. plural(packets, "packet"))
  end
  local topic
  if packet.tvb:len() > DATA_HEAD_BYTES then
    packet.tree:add(fields["payload"], packet.tvb(DATA_HEAD_BYTES))
    topic = place == 0 and packet:show_frame(DATA_HEAD_BYTES)
  end
  local part = packets > 1 and (" %d/%d"):format(place + 1, packets) or ""
  return ("%s #%s%s %s%s"):format(
    KINDS[kind], tostring(number), part, span_of("event", first, first + events),
    topic and " (" .. topic .. ")" or ""
  )
end

show[REPAIR] = show[DATA]

show[HEARTBEAT] = function(packet)
  packet:add("beat.next", 24, 8)
  packet:add("beat.receivers", 6, 2)
  packet.flags:add(fields["beat.ends"], packet.tvb(5, 1))
  packet.flags:add(fields["beat.answers"], packet.tvb(5, 1))
  if packet.length ~= HEARTBEAT_BYTES then
    packet:refuse("a heartbeat of " .. packet.length .. " bytes")
    return nil
  elseif not packet:has(HEARTBEAT_BYTES) then
    return nil
  end
  packet:add("beat.first", 32, 8)
  packet:add("beat.first_event", 40, 8)
  packet:add("beat.next_event", 48, 8)
  packet:check_end()
  local first, next_ = packet:u64(32), packet:u64(24)
  local first_event, next_event = packet:u64(40), packet:u64(48)
  if first > next_ or first_event > next_event then
    packet:refuse("it keeps what does not exist")
  elseif next_ >= NUMBER_MAX or next_event >= NUMBER_MAX then
    packet:refuse("number out of range")
  end
  local flags = packet.tvb(5, 1):uint()
  return ("Heartbeat %s %s, %s%s%s"):format(
    span_of("packet", first, next_), span_of("event", first_event, next_event),
    plural(packet:u16(6), "receiver"),
    band(flags, 1) ~= 0 and ", ends" or "", band(flags, 2) ~= 0 and ", answers" or ""
  )
end

show[NACK] = function(packet, kind)
  packet:add("nack.ranges", 6, 2)
  packet:add(kind == NACK and "nack.asker" or "confirm.receivers", 24, 8)
  local count = packet:u16(6)
  local stop = HEAD_BYTES + RANGE_BYTES * count
  if count == 0 or count > RANGES_MAX or packet.length ~= stop + CHECK_BYTES then
    packet:refuse(("a request of %s in %d bytes"):format(plural(count, "range"), packet.length))
    return nil
  elseif not packet:has(stop) then
    return nil
  end
  local total, spans = UInt64(0), {}
  for at = HEAD_BYTES, stop - RANGE_BYTES, RANGE_BYTES do
    local first, packets = packet:u64(at), packet:u32(at + 8)
    total = total + packets
    local text = packets > 0 and span(first, first + packets) or "nothing"
    local tree = packet.tree:add(fields["nack.range"], packet.tvb(at, RANGE_BYTES), text)
    tree:add_le(fields["nack.range.first"], packet.tvb(at, 8))
    tree:add_le(fields["nack.range.count"], packet.tvb(at + 8, 4))
    if packets == 0 then
      packet:refuse("an empty range")
    elseif first >= NUMBER_MAX or first + packets >= NUMBER_MAX then
      packet:refuse("range out of range")
    end
    if #spans < INFO_RANGES_MAX then
      table.insert(spans, text)
    end
  end
  packet.tree:add(fields["nack.packets"], total):set_generated()
  packet:check_end()
  return ("%s %s, %s: %s%s"):format(
    KINDS[kind], plural(count, "range"), plural(total, "packet"), table.concat(spans, ", "),
    count > #spans and ", ..." or ""
  )
end

show[CONFIRM] = show[NACK]

show[STATUS] = function(packet)
  packet:add("status.next", 24, 8)
  packet.flags:add(fields["status.leaves"], packet.tvb(5, 1))
  if packet.length ~= STATUS_BYTES then
    packet:refuse("a status of " .. packet.length .. " bytes")
    return nil
  elseif not packet:has(STATUS_BYTES) then
    return nil
  end
  packet:add("status.receiver", 32, 8)
  packet:add("status.window", 40, 4)
  packet:check_end()
  if packet:u64(24) >= NUMBER_MAX then
    packet:refuse("packet number out of range")
  end
  return ("Status: has all before #%s, room for %s, receiver 0x%s%s"):format(
    tostring(packet:u64(24)), plural(packet:u32(40), "byte"), packet:u64(32):tohex(16),
    band(packet.tvb(5, 1):uint(), 1) ~= 0 and ", leaves" or ""
  )
end

show[PARITY] = function(packet)
  packet:add("parity.first", 24, 8)
  packet:add("parity.place", 6, 2)
  if not packet:has(PARITY_HEAD_BYTES) then
    return nil
  end
  packet:add("parity.packets", 32, 2)
  packet:add("parity.extra", 34, 2)
  packet:add("parity.length", 36, 2)
  local first, place = packet:u64(24), packet:u16(6)
  local packets, extra, length = packet:u16(32), packet:u16(34), packet:u16(36)
  if packet.tvb:len() > PARITY_HEAD_BYTES then
    packet.tree:add(fields["parity.block"], packet.tvb(PARITY_HEAD_BYTES))
  end
  if packet.tvb:len() < packet.length then
    packet:cut()
  end
  if packets == 0 or packets > PARITY_DATA_MAX or place >= extra or extra > PARITY_EXTRA_MAX then
    packet:refuse(("block %d of %d over %d packets"):format(place, extra, packets))
  elseif length <= 2 or length ~= packet.length - PARITY_HEAD_BYTES then
    packet:refuse("a block of another size")
  elseif first >= NUMBER_MAX or first + packets >= NUMBER_MAX then
    packet:refuse("packet number out of range")
  end
  return ("Parity %d/%d of %s"):format(place + 1, extra, span_of("packet", first, first + packets))
end

-- Datagrams -------------------------------------------------------------------------------------

-- Where the next packet of the same stream, and of the same epoch or sender, begins.
local function next_packet(bytes, magic, after)
  local name = bytes:sub(9, 24)
  local at = bytes:find(magic, after + 1, true)
  while at do
    if bytes:sub(at + 8, at + 23) == name and KINDS[bytes:byte(at + 4)] then
      return at - 1
    end
    at = bytes:find(magic, at + 1, true)
  end
  return nil
end

-- Where the packet at the start of `tvb` ends.  A datagram is one packet, but a machine that sends
-- with segmentation offload captures its own datagrams before they are cut: many packets in one.
local function packet_end(tvb, length)
  local kind = tvb(4, 1):uint()
  local magic = tvb:raw(0, 4)
  local own
  if magic == SEALED_MAGIC then
    return next_packet(tvb:raw(), magic, HEAD_BYTES + TAG_BYTES) or length
  end
  if kind == HEARTBEAT then
    own = HEARTBEAT_BYTES
  elseif kind == NACK or kind == CONFIRM then
    own = HEAD_BYTES + RANGE_BYTES * tvb(6, 2):le_uint() + CHECK_BYTES
  elseif kind == STATUS then
    own = STATUS_BYTES
  elseif kind == PARITY and tvb:len() >= PARITY_HEAD_BYTES then
    own = PARITY_HEAD_BYTES + tvb(36, 2):le_uint()
  elseif (kind == DATA or kind == REPAIR) and tvb:len() >= DATA_HEAD_BYTES then
    if tvb(44, 2):le_uint() == 1 then
      own = DATA_HEAD_BYTES + tvb(40, 4):le_uint()
    end
  else
    return length
  end
  local bytes = tvb:raw()
  if own then
    return bytes:sub(own + 1, own + 4) == MAGIC and own or length
  end
  -- A piece of a frame does not say how long it is.
  return next_packet(bytes, MAGIC, DATA_HEAD_BYTES) or length
end

-- A sealed packet: what is in the clear, and how much is not.
local function show_sealed(packet)
  local kind = packet.tvb(4, 1):uint()
  packet:add("kind", 4, 1)
  packet:add("flags", 5, 1)
  packet:add("stream", 8, 8)
  packet:add("sealed.sender", 16, 8)
  packet:add("sealed.counter", 24, 6)
  packet:add("sealed.generation", 30, 2)
  if not KINDS[kind] then
    packet:refuse("unknown kind " .. kind)
    return nil
  elseif packet.length <= HEAD_BYTES + TAG_BYTES then
    packet:refuse("nothing is sealed in " .. packet.length .. " bytes")
    return nil
  end
  local body = packet.length - HEAD_BYTES - TAG_BYTES
  if packet.tvb:len() < packet.length then
    packet:cut()
  else
    packet:add("sealed", HEAD_BYTES, body)
    packet:add("sealed.tag", HEAD_BYTES + body, TAG_BYTES)
  end
  return ("Sealed %s, %s, sender 0x%s, generation %d, counter %s"):format(
    KINDS[kind], plural(body, "byte"), packet:u64(16):tohex(16),
    packet:u16(30), tostring(packet.tvb(24, 6):le_uint64())
  )
end

local function has_magic(tvb)
  local magic = tvb:captured_len() >= 4 and tvb:raw(0, 4)
  return magic == MAGIC or magic == SEALED_MAGIC
end

local function dissect_packet(tvb, length, tree)
  local packet = setmetatable({ tvb = tvb, length = length }, Packet)
  packet.tree = tree:add(meshmsg, tvb())
  if not has_magic(tvb) then
    packet:refuse("no magic " .. MAGIC)
    return packet.wrong
  end
  packet:add_text("magic", 0, 4)
  if not packet:has(HEAD_BYTES) then
    return packet.wrong or "Cut short by the capture"
  end
  if tvb:raw(0, 4) == SEALED_MAGIC then
    local info = show_sealed(packet)
    packet.tree:append_text(info and ", " .. info or "")
    return packet.wrong or info
  end
  packet:add("kind", 4, 1)
  packet.flags = packet:add("flags", 5, 1)
  packet:add("stream", 8, 8)
  packet:add("epoch", 16, 8)
  local kind = tvb(4, 1):uint()
  if packet:u64(16) >= EPOCH_MAX then
    packet:refuse("epoch out of range")
  end
  local info
  if show[kind] then
    info = show[kind](packet, kind) or KINDS[kind]
  else
    packet:refuse("unknown kind " .. kind)
  end
  packet.tree:append_text(info and ", " .. info or "")
  if packet.wrong and info then
    return info .. " [" .. packet.wrong .. "]"
  end
  return packet.wrong or info
end

function meshmsg.dissector(tvb, pinfo, tree)
  pinfo.cols.protocol = "MESHMSG"
  local infos, at = {}, 0
  local captured, reported = tvb:captured_len(), tvb:reported_len()
  while at < captured do
    local rest = tvb(at):tvb()
    local length = captured - at >= HEAD_BYTES and packet_end(rest, reported - at) or reported - at
    local bytes = math.min(length, captured - at)
    table.insert(infos, dissect_packet(tvb(at, bytes):tvb(), length, tree))
    at = at + length
  end
  local info = table.concat(infos, " | ", 1, math.min(#infos, INFO_PACKETS_MAX))
  if #infos > INFO_PACKETS_MAX then
    info = ("%s | ... | %s (%d packets)"):format(infos[1], infos[#infos], #infos)
  end
  pinfo.cols.info = info
  return captured
end

local function heuristic(tvb, pinfo, tree)
  if not has_magic(tvb) then
    return false
  end
  meshmsg.dissector(tvb, pinfo, tree)
  return true
end

meshmsg:register_heuristic("udp", heuristic)

local registered = ""
function meshmsg.prefs_changed()
  local ports = DissectorTable.get("udp.port")
  if registered ~= meshmsg.prefs.ports then
    if registered ~= "" then
      ports:remove(registered, meshmsg)
    end
    registered = meshmsg.prefs.ports
    if registered ~= "" then
      ports:add(registered, meshmsg)
    end
  end
end
-- For the menu "Decode As", and for the ports of the preferences.
DissectorTable.get("udp.port"):add_for_decode_as(meshmsg)
