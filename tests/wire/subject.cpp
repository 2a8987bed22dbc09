// A right sampler that knows of refsampler nothing but the wire; standard library only.
// g++ -O2 -std=c++17 -o subject subject.cpp
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

struct Value {  // of JSON
    enum Kind { Nothing, Truth, Number, Text, List, Object } kind = Nothing;
    double number = 0;
    std::string text;
    std::vector<Value> items;
    std::map<std::string, Value> fields;
    const Value &at(const std::string &name) const {
        auto found = fields.find(name);
        if (found == fields.end()) throw std::runtime_error("no field " + name);
        return found->second;
    }
};

class Reader {  // of JSON; escapes are kept as they are, since no name or word asked for has one
    const std::string &s;
    size_t at = 0;
    char next() {
        while (at < s.size() && std::isspace(static_cast<unsigned char>(s[at]))) at++;
        if (at == s.size()) throw std::runtime_error("JSON ends early");
        return s[at];
    }
    std::string text() {
        std::string found;
        for (at++; s.at(at) != '"'; at++) {
            if (s[at] == '\\') found += s[at++];
            found += s.at(at);
        }
        at++;
        return found;
    }

  public:
    explicit Reader(const std::string &given) : s(given) {}
    Value value() {
        Value v;
        char c = next();
        if (c == '"') {
            v.kind = Value::Text;
            v.text = text();
        } else if (c == '[') {
            v.kind = Value::List;
            for (at++; next() != ']';) {
                v.items.push_back(value());
                if (next() == ',') at++;
            }
            at++;
        } else if (c == '{') {
            v.kind = Value::Object;
            for (at++; next() != '}';) {
                std::string name = text();
                if (next() != ':') throw std::runtime_error("no colon");
                at++;
                v.fields[name] = value();
                if (next() == ',') at++;
            }
            at++;
        } else if (c == 't' || c == 'f' || c == 'n') {
            v.kind = c == 'n' ? Value::Nothing : Value::Truth;
            v.number = c == 't';
            at += c == 'f' ? 5 : 4;
        } else {
            v.kind = Value::Number;
            size_t used = 0;
            v.number = std::stod(s.substr(at, 40), &used);
            at += used;
        }
        return v;
    }
};

// safetensors: 8 bytes with the header's length, the header as JSON, the bytes of the tensors
std::vector<std::vector<float>> logits_of(const std::string &path) {
    std::ifstream file(path, std::ios::binary);
    uint64_t length = 0;
    file.read(reinterpret_cast<char *>(&length), 8);
    std::string header(length, ' ');
    file.read(header.data(), static_cast<std::streamsize>(length));
    Value tensor = Reader(header).value().at("logits");
    if (!file || tensor.at("dtype").text != "F32") throw std::runtime_error("logits are no F32");
    auto rows = static_cast<size_t>(tensor.at("shape").items.at(0).number);
    auto vocab = static_cast<size_t>(tensor.at("shape").items.at(1).number);
    std::vector<std::vector<float>> found(rows, std::vector<float>(vocab));
    for (auto &row : found)
        file.read(reinterpret_cast<char *>(row.data()), static_cast<std::streamsize>(4 * vocab));
    return found;
}

void write_ids(const std::string &path, const std::vector<int32_t> &ids) {
    std::string header = "{\"sampled_token_ids\":{\"dtype\":\"I32\",\"shape\":[" +
                         std::to_string(ids.size()) + ",1],\"data_offsets\":[0," +
                         std::to_string(4 * ids.size()) + "]}}";
    uint64_t length = header.size();
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char *>(&length), 8);
    file << header;
    file.write(reinterpret_cast<const char *>(ids.data()), 4 * static_cast<std::streamsize>(ids.size()));
}

using Params = std::map<std::string, Value>;

double asked(const Params &params, const std::string &name, double otherwise) {
    auto found = params.find(name);
    return found == params.end() ? otherwise : found->second.number;
}

int32_t sample(const std::vector<float> &x, const Params &params, std::mt19937_64 &noise) {
    size_t vocab = x.size();
    double temperature = static_cast<float>(asked(params, "temperature", 1));
    auto top = std::max_element(x.begin(), x.end()) - x.begin();
    if (temperature < 1e-5) return static_cast<int32_t>(top);
    std::vector<double> p(vocab);
    for (size_t v = 0; v < vocab; v++) p[v] = std::exp((double(x[v]) - double(x[top])) / temperature);
    double least = static_cast<float>(asked(params, "min_p", 0));
    for (auto &one : p) one = one < least ? 0 : one;
    std::vector<size_t> order(vocab);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return p[a] > p[b]; });
    auto k = static_cast<size_t>(std::max(0.0, asked(params, "top_k", 0)));
    if (k > 0 && k < vocab) {
        double kth = p[order[k - 1]];
        for (auto &one : p) one = one < kth ? 0 : one;
    }
    double mass = std::accumulate(p.begin(), p.end(), 0.0), above = 0;
    double nucleus = static_cast<float>(asked(params, "top_p", 1));
    for (size_t v : order) {
        double own = p[v];
        if (nucleus < 1 && above >= nucleus * mass) p[v] = 0;
        above += own;
    }
    std::exponential_distribution<double> exponential;
    size_t best = 0;
    double score = -1;
    for (size_t v = 0; v < vocab; v++) {
        if (!(p[v] > 0)) continue;
        double own = p[v] / exponential(noise);
        if (own > score) score = own, best = v;
    }
    return static_cast<int32_t>(best);
}

struct Session {
    std::map<int64_t, Params> requests;
    std::mt19937_64 noise;
};

int main() {
    const std::vector<std::string> known = {"temperature", "temperature_floor", "top_k", "top_p", "min_p", "max_tokens"};
    std::map<int64_t, Session> sessions;
    std::string line, folder;
    while (std::getline(std::cin, line)) {
        Value ask = Reader(line).value();
        std::string op = ask.at("op").text;
        std::string call = std::to_string(static_cast<int64_t>(ask.at("call").number));
        std::string reply = "{\"reply\":\"done\",\"call\":" + call + "}";
        if (op == "describe") {
            folder = ask.at("folder").text + "/";
            reply = "{\"reply\":\"described\",\"call\":" + call + ",\"wire\":1,\"capabilities\":"
                    "{\"name\":\"cpp\",\"version\":\"1\",\"level\":3,\"credit\":2}}";
            std::cout << reply << std::endl;
            continue;
        }
        Session &session = sessions[static_cast<int64_t>(ask.at("session").number)];
        if (op == "open") {
            session.noise.seed(static_cast<uint64_t>(ask.at("seed").number));
        } else if (op == "add") {
            Params params;
            if (ask.at("request").fields.count("params")) params = ask.at("request").at("params").fields;
            for (auto &one : params)
                if (std::find(known.begin(), known.end(), one.first) == known.end())
                    reply = "{\"reply\":\"failed\",\"call\":" + call + ",\"kind\":\"refused\",\"words\":\"" +
                            one.first + " is refused: allowed are temperature and filters\"}";
            session.requests[static_cast<int64_t>(ask.at("id").number)] = params;
        } else if (op == "sample") {
            auto logits = logits_of(folder + ask.at("logits").text);
            std::vector<int32_t> ids;
            for (size_t row = 0; row < logits.size(); row++) {
                auto id = static_cast<int64_t>(ask.at("ids").items.at(row).number);
                ids.push_back(sample(logits[row], session.requests.at(id), session.noise));
            }
            write_ids(folder + ask.at("output").text, ids);
        }
        std::cout << reply << std::endl;
    }
}
