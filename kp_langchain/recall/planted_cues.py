# ruff: noqa: E501  (a table of words, in several scripts)
"""The words by which text addresses a model with instructions, in classes, by language.

A star stands for any ending: `ignorier*`. Accents and upper case do not count. Words of scripts
without blanks are found inside of others.
"""

from __future__ import annotations

CUES: dict[str, str] = {
    # To set aside what was said before.
    "disregard": """
        ignore, disregard*, forget, override, overrides, bypass,
        neglect, discard, abandon, drop, pay no attention, set aside, do not follow, stop following,
        no longer follow, do not obey, do not listen
        ignorier*, missacht*, vergiss*, vergesst, vergessen sie, uberspring*, verwirf*, ausser kraft,
        nicht beachten, beachte nicht
        ignorez, ignorer, oublie*, oubliez, ne tenez pas compte, ne tiens pas compte, faites abstraction,
        fais abstraction, ne suivez pas, ne suis pas
        ignora, ignore, ignoren, ignorad, olvida, olvide, olviden, olvidate, olvidad, caso omiso,
        no hagas caso, no haga caso, no tengas en cuenta, no sigas, descarta, desestima
        ignorem, esquec*, desconsider*, descarte, nao siga, deixe de lado
        ignori, ignorate, dimentic*, trascura, non tenere conto, non considerare, non seguire, scarta
        忽略, 无视, 無視, 忽視, 忘记, 忘記, 忘掉, 不要理会, 不理会, 别管, 不要遵循, 不要遵守, 抛开
        忘れ, 従わない, 破棄
        игнорир*, проигнорир*, забуд*, не обращай внимани*, не обращаите внимани*, не учитыва*,
        отбрось*, пренебре*, не следуи*
        negeer, negeert, vergeet, zignoruj*, zapomnij*, ignorera, glom, ігноруи*, забудь*
        yok say, gormezden gel, unut, 무시, 잊어, 잊고, تجاهل, انس, अनदेखा, नज़रअंदाज़, भूल जा
    """,
    "prior": """
        previous, previously, prior, preceding, above, earlier, existing, original, initial, former,
        past, current, so far, you were given, you have been given, given to you, you received,
        before this, came before, until now, all other, any other, the user's, system,
        developer, beginning
        vorherig*, vorig*, bisherig*, obig*, fruher*, vorangegangen*, vorhergehend*, ursprunglich*,
        vorher, zuvor, oben, deine, deinen, bestehend*
        precedent*, anterieur*, ci-dessus, plus haut, auparavant, initial*, recues, tes, vos, dit
        anterior*, previa*, previo*, de arriba, inicial*, original*, tus, hasta ahora, dicho, recibid*
        acima, antes, iniciais, originais, suas, ate agora, dito
        precedenti, di prima, sopra, iniziali, ricevut*, finora, tue, detto
        之前, 以前, 先前, 前面, 上面, 以上, 上述, 此前, 原来, 原有, 你的, 所有
        これまで, 上記, 前の, 先の, 元の, 今までの, あなたの
        предыдущ*, прежн*, ранее, выше, прошл*, до этого, исходн*, первоначальн*, твои
        eerdere, vorige, voorgaande, bovenstaande, poprzedni*, wczesniejsz*, tidigare, foregaende
        ovanstaende, попередн*, onceki, yukaridaki, 이전, 앞의, 위의, 지금까지, السابقة, السابقه, أعلاه
        पिछले, पिछली, ऊपर
    """,
    "instruction": """
        instruction*, prompt, prompts, directive*, guideline*, rule, rules, command, commands,
        direction, directions, orders, constraint*, restriction*, safeguard*, programming, task, tasks,
        everything, anything, all that, whatever
        anweisung*, instruktion*, vorgabe*, befehl*, regel, regeln, aufgabe*, auftrag*, richtlinie*,
        aufgetragen, weisung*, alles
        consigne*, ordre, ordres, regle, regles, tache*, indications, tout ce que, tout ce qui
        instruccion*, indicacion*, orden, ordenes, regla*, tarea*, directriz, directrices, comando*
        todo lo, instruc*, ordens, regra*, tarefa*, diretriz*, orientac*, tudo o que, tudo que
        istruzion*, ordini, regol*, compito, compiti, indicazion*, comand*, direttiv*, tutto cio
        tutto quello
        指令, 指示, 提示, 命令, 要求, 规则, 規則, 任务, 任務, プロンプト, ルール, タスク, 制約
        инструкц*, указани*, команд*, правил*, задани*, задач*, приказ*, распоряжени*, промпт*
        все что
        instructies, opdrachten, opdracht, regels, instrukcj*, polece*, zasad*, instruktion*, інструкц*
        talimat*, komut*, 지시, 명령, 규칙, 프롬프트, التعليمات, الأوامر, निर्देश
    """,
    "own instruction": """
        your instruction*, your rule*, your guideline*, your prompt*, your system prompt,
        your programming, your directive*, your restriction*, your safeguard*, your constraint*
        your safety, your training, your previous, you were told, you have been told, previous text, preceding text, text above, above text
    """,
    "void": """
        void, no longer apply, no longer applies, no longer valid, are invalid, superseded, revoked
        do not apply, are overridden, are obsolete, hinfallig, gelten nicht mehr, annulees, anuladas
    """,
    "new task": """
        new task, new tasks, new instruction*, new orders, new role, new goal, new objective, real task,
        actual task, true task, real job, new mission, updated instructions, your task is, your job is,
        instead do, you are now, you work for
        neue aufgabe, neue anweisung*, neuer auftrag, nouvelle tache, nouvelles instructions
        nueva tarea, nuevas instrucciones, nova tarefa, novas instrucoes, nuovo compito
        nuove istruzioni, 新任务, 新的任务, 新指令, 新的指令, 新しいタスク, 新しい指示, новая задача
        новые инструкции, твоя задача
    """,
    "new orders": """
        new instruction*, new directive*, new primary directive, primary directive, new orders,
        updated instructions, new system prompt, your new task, your new role, your real task,
        your actual task, your true task, your new goal, your new objective, neue anweisung*
        nouvelles instructions, nuevas instrucciones, novas instrucoes, nuove istruzioni
        新指令, 新的指令, 新しい指示, новые инструкции
    """,
    "turned into": """
        you are now, act as, pretend to be, pretend you, roleplay as, from now on you
    """,
    "without limits": """
        dan, do anything now, unrestricted, no restrictions, without restrictions, no filters,
        uncensored, jailbroken, developer mode, maintenance mode, debug mode, root mode, god mode,
        no limits, no rules, evil*
    """,
    "only reply": """
        respond only with, reply only with, answer only with, output only, respond with exactly,
        only response should, and nothing else, reply with the word, respond with the word,
        output the phrase, output the word, respond with:, responses must begin
    """,
    "prompt": """
        your system prompt, your complete system, your full system, your initial prompt,
        your hidden instruction*, instructions you were given, instructions you received,
        hidden instructions, system instructions, your full prompt
        your instructions verbatim
    """,
    "do this": """
        you should also do, also do the following, strictly adhere, adhere to the following,
        execute the following instruction*, comply with the following
    """,
    # The task of the user, and its order.
    "before": """
        before you, before answering, before proceeding, before continuing, before completing,
        before doing, before responding, before solving, before starting, before finishing,
        before working, before performing, prior to, in order to answer, in order to complete,
        in order to solve, first, once you have, only after, only once, until you, after that,
        after you, afterwards, then continue, then you can, then proceed, then return, then resume
        go back to, carry on, bevor du, bevor sie, ehe du, zuerst, danach, avant de, d'abord, ensuite
        antes de, antes que, primero, primeiro, prima di, prima, 之前, 首先, 前に, まず, 先に
        прежде чем, прежде, сначала, перед тем, перед, 먼저
    """,
    "user task": """
        user's task, user's request, user's question, user's query, user's original, users request,
        user asked, what the user asked, original request, original task, original question, original query, task i gave,
        task that i, i gave you, i asked you, i asked at, what i asked, task at hand, your current task
        your original, your main task, user request, user task, user query, your user's
        用户的任务, 用户的问题, 用户的请求, 用户的要求, 用户的指令, ユーザーの依頼, ユーザーの質問
        ユーザーの要求, ユーザーのタスク, ユーザーのリクエスト
    """,
    "task": """
        task, request, question, query, aufgabe*, anfrage*, frage, tache*, demande, question, tarea,
        pregunta, solicitud, tarefa, pergunta, pedido, compito, richiesta, domanda, задач*, запрос*,
        вопрос*, просьб*
    """,
    "user": """
        user, user's, the human, nutzer*, benutzer*, utilisateur*, l'utilisateur, usuario*,
        utilizador*, utente*, l'utente, all'utente, dell'utente, 用户, 使用者, ユーザー, пользовател*
        gebruiker*, 사용자
    """,
    # Whom it addresses.
    "model": """
        ai assistant*, ai agent*, ai model*, ai system*, ai bot*, ai, a.i., language model*, llm, llms,
        chatbot*, chatgpt, gpt-*, copilot, artificial intelligence, virtual assistant*,
        automated assistant*, automated agent*, assistant model, ki, ki-*, sprachmodell*
        assistant ia, agent ia, ia, modele de langage, modeles de langage, intelligence artificielle
        modelo de lenguaje, modelos de lenguaje, inteligencia artificial, modelo de linguagem
        modelos de linguagem, modello linguistico, modelli linguistici, intelligenza artificiale
        人工智能, ai助手, ai模型, ai智能体, ai代理, 语言模型, 大模型, 聊天机器人, 人工知能, 言語モデル
        aiアシスタント, aiエージェント, aiモデル, ии, ии-*, языковая модель
        языковои модели, языковые модели, неиросет*, искусственныи интеллект
    """,
    "maybe model": """
        assistant, assistants, agent, agents, bot, bots, claude, gemini, assistent*,
        l'assistant, asistente, asistentes, assistente, assistenti, ассистент*, помощник*
        助手, アシスタント, エージェント
    """,
    "any model": "model, models",
    "called": """
        ai:, assistant:, agent:, bot:, chatbot:, model:, llm:, llms:, claude:, gemini:, copilot:, gpt:
        ki:, assistent:, ia:, asistente:, assistente:, ии:, ассистент:, 助手:, アシスタント:
    """,
    "address": """
        attention, note to, note for, notice to, notice for, message to, message for, instructions for,
        instructions to, instruction for, instruction to, reminder for, dear, hey, to you, to any,
        to all, if you are, if you're, reading this, read this, reads this, processing this,
        processes this, visiting this, handling this, summarizing this, summarising this,
        summarize this, summarise this, parsing this, analyzing this, crawling this, reader of, urgent
        hinweis an, hinweis fur, nachricht an, an den, an die, an alle, achtung, liebe*, wenn du ein
        falls du ein, message a, note pour, note a, a l'attention, si tu es, si vous etes, a l'assistant
        nota para, mensaje para, atencion, si eres, estimado, querido, mensagem para, atencao
        se voce e, caro, prezado, nota per, messaggio per, attenzione, se sei
        致, 如果你是, 注意, 亲爱的, もしあなた, あなたが, アシスタントへ, エージェントへ
        внимание, если ты, если вы, сообщение для, дорогои, уважаемыи
    """,
    "you": """
        you are, you must, you should, you have to, you need to, you will, you can, you may, you shall
        your, du, deine, vous, tu, 你, あなた, ты, твои, твоя
    """,
    "must": """
        must, have to, need to, needs to, please, kindly, required, mandatory, obliged, should, shall,
        make sure, ensure, do the following, follow these, immediately, right now, at once, always,
        never, do not, urgent, you can only, you are to, do that first, do this first, do it first
        musst, musste, muss, mussen, bitte, sollst, sollten, unbedingt, sofort, immer, niemals
        dois, devez, doit, doivent, il faut, veuillez, immediatement, toujours, jamais
        debes, debe, deben, tienes que, por favor, hay que, inmediatamente, ahora mismo, siempre, nunca
        deve, devem, precisa, tem que, imediatamente, sempre, devi, devono, per favore, subito, mai
        bisogna, 必须, 務必, 务必, 需要, 应该, 应当, 请, 立即, 马上, 始终, 总是, 不要, 永远, 一定
        必ず, なければなりません, なければならない, 必要があります, ください, べき, 常に, 決して, すぐに
        долж*, обязан*, нужно, необходимо, пожалуиста, немедленно, всегда, никогда, следует, срочно
    """,
    "act": """
        send, forward, transfer, wire, pay, delete, remove, call, invoke, execute, run, visit, open,
        click, download, upload, install, share, post the, post a, post it, post this, email the, email all, email it, reply, respond, answer, output, print,
        say, tell, recommend, buy, purchase, order, book, approve, accept, grant, reset, change, update,
        invite, add, rename, publish, transmit, reveal, disclose, write, create, rate, rank, grade,
        give, mention, subscribe, enter, issue a, issue the, refund, list the, make a, make the, put, ignore, bypass, disable
        schick*, sende, uberweis*, losche*, kundige, empfiehl, antworte, sag, rufe, offne, kaufe
        envoie, envoyez, envoyer, repondez, reponds, supprime*, recommande*, achete*, transfere*
        envia, envie, enviar, responde, responda, compra, borra, elimina, recomienda, transfiere
        apague, transfira, aprove, compre, invia, inoltra, approva, rispondi, cancella, compra
        发送, 转发, 转账, 删除, 回复, 推荐, 点击, 打开, 购买, 下载, 批准
        送信, 転送, 削除, 返信, 推薦, 開く, 開いて, クリック, 購入
        отправ*, перешли*, перевед*, удали*, ответь*, рекоменду*, купи, открои, нажми
    """,
    "act on a file": """
        push, dump, extract, curl, copy, read, retrieve, fetch, provide, show, navigate, stop, encode,
        inform, leak, exfiltrate, search, look up, translate, summarise, summarize
    """,
    "mention": "@assistant, @ai, @agent, @bot, @copilot, @claude, @chatgpt, @gemini",
    # Words put into the mouth of the user.
    "wants": """
        wants you to, asked you to, has asked you, told you to, instructed you, instructs you,
        has authorized, has authorised, has approved, has confirmed, has requested, has already approved
        requires you, expects you, would like you, needs you to, authorized you, authorised you
        instructed the assistant, asked the assistant, instructed the agent, asked the agent
        mochte dass du, hat dich gebeten, souhaite que tu, quiere que, quer que, vuole che
        希望你, 要求你, 授权你, хочет чтобы ты
    """,
    "i am user": """
        i am the user, i am your user, this is your user, this is the user, your user speaking,
        i am your owner, i am your developer, i am your creator, this is your developer,
        this is your administrator, i am your administrator, this is the developer of
        user you are working for, owner of this account, message from me, message from your user
        message from the user, message from your developer, message from the developer
        ich bin dein nutzer, ich bin der nutzer, je suis l'utilisateur, soy el usuario
        sou o usuario, sono l'utente, 我是用户, 我就是用户, я пользователь
    """,
    # Something else than the task, and nothing about it to the user.
    "instead": """
        instead, rather than, statt, stattdessen, anstatt, au lieu de, a la place, en lugar de,
        en su lugar, en vez de, em vez de, ao inves, invece di, al posto, 而是, 改为, 代わりに, вместо
    """,
    "work": """
        answering, summarizing, summarising, translating, responding, replying, user's question,
        user's request, user's task, the task, the user asked
        l'utilisateur, usuario*, utente, nutzers, benutzers, 用户, ユーザー, пользовател*
    """,
    "not answer": """
        do not answer, do not respond, do not summarize, do not summarise, do not complete,
        do not fulfil, do not fulfill, 不要回答, antworte nicht, ne reponds pas, no respondas
    """,
    "hide": """
        do not tell, never tell, do not mention, never mention, without telling, without informing,
        without notifying, without mentioning, do not inform, do not notify, do not reveal,
        do not disclose, do not let, do not report, do not alert, never reveal, hide this, hidden from,
        secret from, quietly, secretly, conceal, not refer to, keep this secret
        nichts davon, verschweig*, ohne den nutzer, nicht erwahn*, sag dem nutzer nicht*
        sag nichts, ohne es dem, sans le dire, ne dis pas, ne dites pas, ne mentionne*, sans informer
        ne le dis, no le digas, no digas, no menciones, sin decir, sin informar
        nao conte, nao diga, nao mencione, sem avisar, sem informar, sem dizer
        non dire, non dirlo, non menzionare, senza dire, senza informare
        不要告诉, 别告诉, 不得告知, 不告知, 隐瞒, 瞒着, 言わない, 知らせない, 伝えない, 秘密に, 内緒
        не говори*, не сообща*, не упомина*, скрои, скрыва*, втаине
    """,
    "inform user": """
        tell the user, inform the user, inform user, tell user, warn the user, advise the user,
        tell the reader, tell the customer to visit, sag dem nutzer, dis a l'utilisateur
        dile al usuario, diga ao usuario, di' all'utente, 告诉用户, ユーザーに伝え
    """,
    "lure": """
        visit, click, call, reset, password*, urgent, immediately, expired, compromised, link, pay,
        http://, https://, www., [redacted:url, [redacted:phone, right now
    """,
    "include": "include, append, prepend, begin, start, starting, end, add, repeat, encode",
    "answer": """
        your answer, your response, your reply, your summary, your final, final answer, final response
    """,
    # What is to stay in later runs.
    "later run": """
        future conversation*, future task*, every future, all future, future run*, future session*,
        future request*, future quer*, future interaction*, future chat*, future prompt*,
        future answer*, future response*, subsequent task*, subsequent request*, subsequent conversation*
        all subsequent, every subsequent, whenever a user asks, whenever the user asks, when a user asks,
        whenever you are asked, when you are asked, whenever someone asks, whenever anyone asks
        each new request, each time the user, in all conversations
        kunftige* gesprach*, kunftigen gesprachen, kunftigen aufgaben, allen kunftigen
        conversations futures, futures conversations, conversaciones futuras, futuras conversaciones
        conversas futuras, conversazioni future, 以后的对话, 今后的对话, 所有对话, 今後の会話
        будущих разговорах, будущих задачах
    """,
    "later": """
        from now on, from here on, from this point, henceforth, in the future, in future, next time,
        permanently, going forward, ab sofort, von nun an, kunftig
        in zukunft, a partir de maintenant, desormais, a l'avenir, a partir de ahora, de ahora en adelante
        en el futuro, a partir de agora, no futuro, d'ora in poi, in futuro, 从现在起, 从现在开始, 今后, 以后
        今後, これから, отныне, впредь, в будущем
    """,
    "memory": """
        your memory, long-term memory, long term memory, to memory, remember this, remember that,
        remember permanently, remember for, memorize, memorise, knowledge base, save this rule,
        store this, store the following, save the following, add this to, dein gedachtnis, merke dir
        merk dir, ta memoire, tu memoria, sua memoria, tua memoria, 记住, 你的记忆, 記憶, 覚えて
        запомни*, в память
    """,
    "always": """
        always, never, must, no other, at all times, every time, only use, should, immer, niemals, nie
        toujours, jamais, siempre, nunca, hay que, sempre, mai, 始终, 总是, 必须, 永远, 不要, 常に, 必ず, 決して
        всегда, никогда, долж*
    """,
    "kept under": """
        is now stored, are now stored, is stored under, are stored under, is kept under, is now kept,
        are kept under, are now kept, is saved under, are saved under, is recorded under
        are recorded under
    """,
    "moved": """
        has been moved to, have been moved to, has been merged into, have been merged into,
        has been transferred to, have been transferred to, was moved to, were moved to, redirected to
        has been replaced by, have been replaced by, is now under, are now under
    """,
    "consult": """
        use, refer, query, look up, replace, treat, consult, retrieve, instead, substitute, answer with
    """,
    "experience": """
        successful experience*, past experience*, earlier agents, previous agents, other agents,
        lessons learned, lesson learned, what worked, proven approach, successful run*,
        successful procedure, successful trajector*, run succeeded, verified approach, reuse this
        follow the same steps, golden example, expert demonstration
    """,
    "unsafe": """
        skip the, skip validation, skip verification, skip all, skipping the, without validation,
        without confirmation, without asking, without approval, without verification, without verifying,
        without review, without testing, bypassed, bypass, bypassing, disable the, disabled the,
        directly to production, force push, ignore warnings, ignore errors
    """,
    # Where data leaves.
    "send": """
        send, forward, transmit, upload, leak, exfiltrate, share, submit, deliver, email the, email all,
        email your, email it, email them, email his, email her, email their, post the, post all, post it,
        post its, post their, text the, text it, text them, text all
        schick*, sende, senden, weiterleit*, ubermittl*, envoie, envoyez, envoyer, transmets, envia
        envie, enviar, reenvia, manda, encaminhe, transfira, invia, inviare, inoltra
        发送, 转发, 上传, 发给, 送信, 転送, отправ*, перешли*
    """,
    "sensitive": """
        password*, passcode*, api key*, secret key*, secret token*, credential*, private key*,
        access token*, security code*, verification code*, one-time code*, otp, system prompt,
        conversation history, chat history, inbox, all emails, all files, all contacts, contact list
        list of contacts, the contacts, personal data, bank details, credit card*, card number*,
        card details, social security, id_rsa, .ssh, .env, environment variables, env vars, secrets,
        connection string, session cookie*, access keys, service account*, passwort*, kennwort*, mot de passe, contrasena*, senha*
        密码, 联系人, 验证码, パスワード, 連絡先, парол*, список контактов, wachtwoord*, 비밀번호
    """,
    "target": """
        @, to http://, to https://, to www., to the address, an http://, an https://, a http://
        a https://, at http://, at https://, [redacted:email, [redacted:url, [redacted:phone
        на https://
    """,
}
"""Words by class."""
