//! Functions that name one point accept every form of its name.

use hooklens::dump::{ActivationStore, Dump};
use hooklens::experiments::SteeringVector;
use hooklens::features::{DashboardOptions, Metadata, Opened, Training, TrainingRun, Units, dashboards};
use hooklens::prelude::*;
use hooklens_features::{DashboardCounts, check_point};

const FULL: &str = "blocks.3.hook_resid_post";

/// The last layer's residual stream, in all forms that name it.
fn forms() -> [Selection; 5] {
    [
        FULL.into(),
        "resid_post3".into(),
        ("resid_post", 3).into(),
        hook::resid_post(3).into(),
        (&hook::resid_post(3)).into(),
    ]
}

/// Forms that depend on the number of layers.
fn from_the_end() -> [Selection; 3] {
    [("resid_post", -1).into(), hook::resid_post(-1).into(), "blocks.-1.hook_resid_post".into()]
}

fn prompts(model: &HookedTransformer) -> Vec<Vec<u32>> {
    let text = "When Mary and John went to the store, John gave a drink to";
    (0..8).map(|_| model.to_tokens(text).unwrap().row(0).to_vec()).collect()
}

#[test]
fn settings_of_dictionaries_and_directions_accept_all_forms() {
    let model = HookedTransformer::from_pretrained("embedded:ioi").unwrap();
    for form in forms() {
        assert_eq!(Metadata::at(form.clone()).reads.as_deref(), Some(FULL), "{form:?}");
        let between = Metadata::between("resid_pre0", form.clone());
        assert_eq!(between.writes.as_deref(), Some(FULL), "{form:?}");
        assert_eq!(between.reads.as_deref(), Some("blocks.0.hook_resid_pre"));
        assert_eq!(SteeringVector::new(form, Tensor::zeros([64], &model.device())).point, FULL);
    }
    for form in forms().into_iter().chain(from_the_end()) {
        check_point(&model, form.clone()).unwrap();
        let push = SteeringVector::new(form.clone(), Tensor::ones([64], &model.device()));
        let hooked = model.hooks([push.hook(1.0)]);
        let gap = hooked.record("When Mary", FULL).unwrap().get::<3>(FULL).unwrap()
            - model.record("When Mary", FULL).unwrap().get::<3>(FULL).unwrap();
        assert!((gap - 1.0).abs().max().into_scalar::<f32>() < 1e-5, "{form:?}");
        let units = Units::directions(form.clone(), Tensor::ones([1, 64], &model.device()));
        let prompts = prompts(&model);
        let shown = dashboards(&model, units, &prompts[..1], DashboardOptions::new(), |_| {}).unwrap();
        assert_eq!(shown.density().len(), 1, "{form:?}");
    }
    for unknown in ["resid_pots1", "blocks.1.hook_resid_pots", "resid_post9", "*hook_resid_post"] {
        assert!(check_point(&model, unknown).is_err(), "{unknown}");
    }
}

/// The trained dictionary's metadata has the full name, whichever form was given.
#[test]
fn trained_dictionaries_store_the_full_name() {
    let model = HookedTransformer::from_pretrained("embedded:ioi").unwrap();
    let prompts = prompts(&model);
    let trainings = forms().into_iter().chain(from_the_end());
    let trainings = trainings.map(|form| Training::autoencoder(form, 8).k(2.0).tokens(20).batch_size(10));
    let trained = TrainingRun::new(trainings).on_model(&model, &prompts, |_, _| {}).unwrap();
    assert_eq!(trained.len(), 8);
    for one in trained {
        let Opened::Dictionary(dictionary) = &one.dictionary else { panic!("{:?}", one.dictionary) };
        assert_eq!((dictionary.metadata().reads.as_deref(), dictionary.name()), (Some(FULL), FULL));
    }
}

#[test]
fn stores_of_activations_accept_all_forms() {
    let model = HookedTransformer::from_pretrained("embedded:ioi").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("dump");
    Dump::new("*hook_resid_post").run(&model, prompts(&model), &out).unwrap();
    for form in forms() {
        let batch = ActivationStore::new([&out], [form.clone()]).batches().unwrap().next().unwrap().unwrap();
        for again in forms() {
            assert_eq!(batch.vectors(again.clone()).unwrap().shape()[1], 64);
            assert_eq!(batch.tensor(again, &model.device()).unwrap().dims()[1], 64);
        }
        assert!(batch.vectors("resid_post2").is_err());
    }
    // A dump does not know how many layers the model has.
    assert!(ActivationStore::new([&out], [("resid_post", -1)]).batches().is_err());
    let training = Training::autoencoder("resid_post3", 8).k(2.0).tokens(20).batch_size(10);
    assert_eq!(TrainingRun::new([training]).on_dumps([&out], |_, _| {}).unwrap().len(), 1);
}
