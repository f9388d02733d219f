// Node's clients against a server: whole answers, streams, tools, structured output and errors of each; and of those
// that have them thoughts, images, embeddings, and streams that the client stops reading.
//
//     node clients.mjs http://127.0.0.1:8080 [CLIENT]…
//
// The server has the models default, thinking, seeing and embedder. Prints one JSON line a case: {"client", "case", "error"}.

import assert from "node:assert/strict";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import Anthropic from "@anthropic-ai/sdk";
import { Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, run, setTracingDisabled, tool as agentTool } from "@openai/agents";
import { deflateSync, crc32 } from "node:zlib";
import { embedMany, generateText, jsonSchema, Output, streamText, tool } from "ai";
import OpenAI from "openai";
import { z } from "zod";

const [url, ...wanted] = process.argv.slice(2);
const HELLO = "Say hello in one short sentence.";
const messages = [{ role: "user", content: HELLO }];
const MOST = 40;
const City = z.object({ name: z.enum(["Oslo", "Rome"]), big: z.boolean() });
const parameters = {
  type: "object",
  properties: { city: { enum: ["Oslo", "Rome"] } },
  required: ["city"],
  additionalProperties: false,
};

const text = (value) => assert.ok(typeof value === "string" && value.trim(), `no text: ${JSON.stringify(value)}`);

// Any answer: to a result of a tool a small model sometimes says nothing.
const answered = (value) => assert.equal(typeof value, "string");

async function raises(status, says, work) {
  let told;
  try {
    await work();
  } catch (error) {
    told = error;
  }
  assert.ok(told, "no error");
  assert.equal(told.status ?? told.statusCode, status, String(told));
  assert.match(`${told.message} ${told.responseBody ?? ""}`, says);
}

const STORY = "Tell me a very long story.";
const LONG = 1500; // tokens of an answer that is not read to its end
const ENDS_MS = 20_000; // in which a request ends that is not read any more
const TEXTS = ["all the same", "of one mind", "all the same"];

// A red square as PNG.
function picture() {
  const part = (kind, data) => {
    const body = Buffer.concat([Buffer.from(kind), data]);
    const [size, sum] = [Buffer.alloc(4), Buffer.alloc(4)];
    size.writeUInt32BE(data.length);
    sum.writeUInt32BE(crc32(body));
    return Buffer.concat([size, body, sum]);
  };
  const row = Buffer.concat([Buffer.from([0]), Buffer.alloc(192, Buffer.from([255, 0, 0]))]);
  const head = Buffer.from([0, 0, 0, 64, 0, 0, 0, 64, 8, 2, 0, 0, 0]);
  const rows = deflateSync(Buffer.concat(Array(64).fill(row)));
  const magic = Buffer.from([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a]);
  return Buffer.concat([magic, part("IHDR", head), part("IDAT", rows), part("IEND", Buffer.alloc(0))]);
}

const PICTURE = picture().toString("base64");
const PICTURE_URL = `data:image/png;base64,${PICTURE}`;

// A picture has rows of its own in the prompt, whose tokens `read` counts: with the picture, or without.
async function seen(read) {
  assert.ok((await read(true)) > (await read(false)) + 4);
}

// The vectors of TEXTS: of length 1, those of equal texts equal.
function vectors(found) {
  assert.equal(found.length, TEXTS.length);
  for (const vector of found) assert.ok(Math.abs(vector.reduce((sum, it) => sum + it * it, 0) - 1) < 1e-3);
  assert.deepEqual(found[0], found[2]);
  assert.notDeepEqual(found[0], found[1]);
}

async function aborted() {
  const said = await (await fetch(`${url}/metrics`)).text();
  const found = said.matchAll(/^foredraft_requests_total\{.*finished_reason="abort".*\} (.*)$/gm);
  return [...found].reduce((sum, [, count]) => sum + Number(count), 0);
}

// `read` takes the beginning of a long answer and leaves the rest: the request ends.
async function givesUp(read) {
  const before = await aborted();
  await read();
  const end = Date.now() + ENDS_MS;
  while ((await aborted()) === before) {
    assert.ok(Date.now() < end, "the request goes on");
    await new Promise((done) => setTimeout(done, 100));
  }
}

// --- openai ------------------------------------------------------------------------------------------------

const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const chat = { model: "gpt-4o", messages, max_tokens: MOST };
const functions = [{ type: "function", function: { name: "get_weather", description: "The weather.", parameters } }];

const openaiCases = {
  async whole() {
    const { data, response } = await openai.chat.completions.create(chat).withResponse();
    text(data.choices[0].message.content);
    assert.ok(response.headers.get("x-request-id"));
    text((await openai.responses.create({ model: "gpt-4o", input: HELLO, max_output_tokens: MOST })).output_text);
  },
  async stream() {
    const stream = openai.chat.completions.stream({ ...chat, stream_options: { include_usage: true } });
    let pieces = "";
    stream.on("content", (delta) => (pieces += delta));
    assert.equal(await stream.finalContent(), pieces);
    assert.ok((await stream.totalUsage()).completion_tokens);
    const responses = openai.responses.stream({ model: "gpt-4o", input: HELLO, max_output_tokens: MOST });
    text((await responses.finalResponse()).output_text);
  },
  async tools() {
    const options = { ...chat, max_tokens: 200, tools: functions };
    const answer = await openai.chat.completions.create({ ...options, tool_choice: "required", parallel_tool_calls: false });
    const message = answer.choices[0].message;
    assert.ok(["Oslo", "Rome"].includes(JSON.parse(message.tool_calls[0].function.arguments).city));
    const result = { role: "tool", tool_call_id: message.tool_calls[0].id, content: "sunny" };
    const again = { ...options, tool_choice: "none", messages: [...messages, message, result] };
    answered((await openai.chat.completions.create(again)).choices[0].message.content);
  },
  async structured() {
    const { zodResponseFormat } = await import("openai/helpers/zod");
    const format = { response_format: zodResponseFormat(City, "city"), max_tokens: 300 };
    City.parse((await openai.chat.completions.parse({ ...chat, ...format })).choices[0].message.parsed);
  },
  async errors() {
    await raises(400, /max_tokens/, () => openai.chat.completions.create({ ...chat, max_tokens: 0 }));
    await raises(400, /Did you mean 'max_tokens'/, () => openai.chat.completions.create({ ...chat, maxTokens: 3 }));
    await raises(404, /nonesuch/, () => openai.models.retrieve("nonesuch"));
  },
  async thinking() {
    const thinks = { ...chat, model: "thinking" };
    text((await openai.chat.completions.create(thinks)).choices[0].message.reasoning_content);
    const { output } = await openai.responses.create({ model: "thinking", input: HELLO, max_output_tokens: MOST });
    text(output[0].content[0].text);
  },
  async images() {
    const image = { type: "image_url", image_url: { url: PICTURE_URL } };
    await seen(async (look) => {
      const content = [{ type: "text", text: HELLO }, ...(look ? [image] : [])];
      const asked = { model: "seeing", messages: [{ role: "user", content }], max_tokens: 8 };
      return (await openai.chat.completions.create(asked)).usage.prompt_tokens;
    });
  },
  async embeddings() {
    const { data } = await openai.embeddings.create({ model: "embedder", input: TEXTS });
    vectors(data.map(({ embedding }) => embedding));
  },
  async cancel() {
    await givesUp(async () => {
      const asked = { ...chat, messages: [{ role: "user", content: STORY }], max_tokens: LONG, stream: true };
      const stream = await openai.chat.completions.create(asked);
      for await (const chunk of stream) if (chunk.choices[0].delta.content) break;
      stream.controller.abort();
    });
  },
};

// --- @anthropic-ai/sdk -------------------------------------------------------------------------------------

const anthropic = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });
const message = { model: "claude-opus-4-8", messages, max_tokens: MOST };
const anthropicTools = [{ name: "get_weather", description: "The weather.", input_schema: parameters }];

const anthropicCases = {
  async whole() {
    text((await anthropic.messages.create(message)).content[0].text);
    assert.ok((await anthropic.messages.countTokens({ model: "x", messages })).input_tokens);
  },
  async stream() {
    const stream = anthropic.messages.stream(message);
    let pieces = "";
    stream.on("text", (delta) => (pieces += delta));
    assert.equal(await stream.finalText(), pieces);
  },
  async tools() {
    const options = { ...message, max_tokens: 200, tools: anthropicTools };
    const answer = await anthropic.messages.create({ ...options, tool_choice: { type: "any", disable_parallel_tool_use: true } });
    const call = answer.content.find((block) => block.type === "tool_use");
    assert.ok(["Oslo", "Rome"].includes(call.input.city));
    const result = { type: "tool_result", tool_use_id: call.id, content: "sunny" };
    const history = [...messages, { role: "assistant", content: answer.content }, { role: "user", content: [result] }];
    answered((await anthropic.messages.create({ ...options, tool_choice: { type: "none" }, messages: history })).content[0].text);
  },
  async structured() {
    const schema = { ...z.toJSONSchema(City), additionalProperties: false };
    const format = { output_config: { format: { type: "json_schema", schema } }, max_tokens: 300 };
    City.parse(JSON.parse((await anthropic.messages.create({ ...message, ...format })).content[0].text));
  },
  async errors() {
    await raises(400, /max_tokens/, () => anthropic.messages.create({ ...message, max_tokens: 0 }));
  },
  async thinking() {
    const { content } = await anthropic.messages.create({ ...message, model: "thinking" });
    assert.equal(content[0].type, "thinking");
    text(content[0].thinking);
  },
  async images() {
    const source = { type: "base64", media_type: "image/png", data: PICTURE };
    await seen(async (look) => {
      const content = [{ type: "text", text: HELLO }, ...(look ? [{ type: "image", source }] : [])];
      const asked = { model: "seeing", messages: [{ role: "user", content }], max_tokens: 8 };
      const { usage } = await anthropic.messages.create(asked);
      return usage.input_tokens + usage.cache_read_input_tokens;
    });
  },
  async cancel() {
    await givesUp(async () => {
      const asked = { ...message, messages: [{ role: "user", content: STORY }], max_tokens: LONG };
      const stream = anthropic.messages.stream(asked);
      for await (const event of stream) if (event.type === "content_block_delta") break;
      stream.abort();
    });
  },
};

// --- ai, with each of its providers ------------------------------------------------------------------------

const weather = tool({ description: "The weather in a city.", inputSchema: jsonSchema(parameters) });
const once = { prompt: HELLO, maxOutputTokens: MOST, maxRetries: 0 };

// `named` makes a model of a name; `embedder`, and `shows` thoughts, if the provider has that.
function aiCases(named, name, { embedder, shows = true } = {}) {
  const model = named(name);
  const cases = {
    async whole() {
      const answer = await generateText({ ...once, model });
      text(answer.text);
      assert.ok(answer.usage.outputTokens);
    },
    async stream() {
      let failed;
      const stream = streamText({ ...once, model, onError: ({ error }) => (failed = error) });
      let pieces = "";
      for await (const delta of stream.textStream) pieces += delta;
      if (failed) throw failed;
      text(pieces);
      assert.ok((await stream.usage).outputTokens);
    },
    async tools() {
      const options = { ...once, model, tools: { weather }, toolChoice: "required", maxOutputTokens: 200 };
      const { toolCalls, response } = await generateText(options);
      assert.ok(["Oslo", "Rome"].includes(toolCalls[0].input.city), JSON.stringify(toolCalls));
      const output = { type: "text", value: "sunny" };
      const results = toolCalls.map(({ toolCallId, toolName }) => ({ type: "tool-result", toolCallId, toolName, output }));
      const result = { role: "tool", content: results };
      const history = [{ role: "user", content: HELLO }, ...response.messages, result];
      const { prompt, ...rest } = options;
      answered((await generateText({ ...rest, messages: history, toolChoice: "none" })).text);
    },
    async structured() {
      const answer = await generateText({ ...once, model, maxOutputTokens: 300, output: Output.object({ schema: City }) });
      City.parse(answer.output);
    },
    async errors() {
      // Each provider takes care of some values itself: one of these gets through.
      const wrong = { temperature: 9, stopSequences: [""] };
      await raises(400, /temperature|stop_sequences/, () => generateText({ ...once, model, ...wrong }));
    },
    async images() {
      await seen(async (look) => {
        const content = [{ type: "text", text: HELLO }, ...(look ? [{ type: "image", image: picture() }] : [])];
        const asked = { model: named("seeing"), messages: [{ role: "user", content }], maxOutputTokens: 8, maxRetries: 0 };
        return (await generateText(asked)).usage.inputTokens;
      });
    },
    async cancel() {
      await givesUp(async () => {
        const stop = new AbortController();
        const asked = { ...once, model, prompt: STORY, maxOutputTokens: LONG, abortSignal: stop.signal };
        for await (const delta of streamText({ ...asked, onError: () => {} }).textStream) if (delta) break;
        stop.abort();
      });
    },
  };
  if (shows) {
    cases.thinking = async () => {
      // OpenAI's provider shows a summary, of models that it knows to reason, or is told so.
      const openai = { reasoningSummary: "auto", forceReasoning: true };
      const asked = { ...once, model: named("thinking"), providerOptions: { openai } };
      text((await generateText(asked)).reasoningText);
      let thought = "";
      for await (const part of streamText(asked).fullStream) if (part.type === "reasoning-delta") thought += part.text;
      text(thought);
    };
  }
  if (embedder) {
    cases.embeddings = async () => vectors((await embedMany({ model: embedder, values: TEXTS, maxRetries: 0 })).embeddings);
  }
  return cases;
}

const compatible = createOpenAICompatible({
  name: "foredraft",
  baseURL: `${url}/v1`,
  apiKey: "none",
  supportsStructuredOutputs: true,
  includeUsage: true,
});
const viaOpenAI = createOpenAI({ baseURL: `${url}/v1`, apiKey: "none" });
const viaAnthropic = createAnthropic({ baseURL: `${url}/v1`, apiKey: "none" });

// --- @openai/agents ----------------------------------------------------------------------------------------

setTracingDisabled(true);

function agentCases(model) {
  const agent = (options) => new Agent({ name: "helper", instructions: "Be brief.", model, modelSettings: { maxTokens: 300 }, ...options });
  return {
    async whole() {
      text((await run(agent(), HELLO)).finalOutput);
    },
    async stream() {
      const stream = await run(agent(), HELLO, { stream: true });
      let pieces = "";
      for await (const piece of stream.toTextStream()) pieces += piece;
      await stream.completed;
      text(pieces);
    },
    async tools() {
      const asked = [];
      const weatherTool = agentTool({
        name: "get_weather",
        description: "The weather in a city.",
        parameters: z.object({ city: z.enum(["Oslo", "Rome"]) }),
        execute: ({ city }) => (asked.push(city), "sunny"),
      });
      const settings = { maxTokens: 300, toolChoice: "required" };
      answered((await run(agent({ tools: [weatherTool], modelSettings: settings }), HELLO)).finalOutput);
      assert.ok(["Oslo", "Rome"].includes(asked[0]), String(asked));
    },
    async structured() {
      City.parse((await run(agent({ outputType: City }), HELLO)).finalOutput);
    },
    async errors() {
      await raises(400, /temperature/, () => run(agent({ modelSettings: { temperature: 9 } }), HELLO));
    },
  };
}

const clients = {
  openai: openaiCases,
  "@anthropic-ai/sdk": anthropicCases,
  "@ai-sdk/openai-compatible": aiCases(compatible, "gpt-4o", { embedder: compatible.textEmbeddingModel("embedder") }),
  "@ai-sdk/openai": aiCases(viaOpenAI, "gpt-4o", { embedder: viaOpenAI.embedding("embedder") }),
  "@ai-sdk/openai chat": aiCases(viaOpenAI.chat, "gpt-4o", { embedder: viaOpenAI.embedding("embedder"), shows: false }),
  "@ai-sdk/anthropic": aiCases(viaAnthropic, "claude-opus-4-8"),
  "@openai/agents": agentCases(new OpenAIResponsesModel(openai, "gpt-4o")),
  "@openai/agents chat": agentCases(new OpenAIChatCompletionsModel(openai, "gpt-4o")),
};

for (const [client, cases] of Object.entries(clients)) {
  if (wanted.length && !wanted.includes(client)) continue;
  for (const [name, work] of Object.entries(cases)) {
    let error = null;
    try {
      await work();
    } catch (caught) {
      error = String(caught?.stack ?? caught).slice(0, 3000);
      for (const more of [caught?.responseBody, caught?.cause]) if (more) error += `\n${String(more).slice(0, 1000)}`;
    }
    console.log(JSON.stringify({ client, case: name, error }));
  }
}
