"""A scikit-learn pipeline with grid search.

The rank and the penalty of the probe are chosen jointly by subject-wise cross-validation.
"""

import plotly.graph_objects as go
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.pipeline import make_pipeline

from polyadic import CPD
from polyadic.data import synthetic

# %%
# The estimators are scikit-learn transformers: they can be cloned, searched over and used in pipelines. Their features
# need no `StandardScaler`.
signals = synthetic(240)
X, y, person = signals.X, signals.label, signals.subject
pipeline = make_pipeline(CPD(max_sweeps=10, tol=0), LogisticRegression(max_iter=500))

# %%
# Three folds; all windows of a subject are in the same fold.
grid = {"cpd__rank": [2, 4, 8, 16], "logisticregression__C": [0.01, 0.1, 1.0]}
search = GridSearchCV(pipeline, grid, cv=GroupKFold(3)).fit(X, y, groups=person)
print(f"best: {search.best_params_}, {search.best_score_:.1%} in cross-validation")

# %%
# Accuracy over the whole grid. (`polyadic.evaluate.Probe`, used instead of the regression, chooses its penalty itself.)
scores = 100 * search.cv_results_["mean_test_score"].reshape(4, 3).T
figure = go.Figure(layout={"height": 300})
figure.add_heatmap(
    z=scores,
    x=[str(rank) for rank in grid["cpd__rank"]],
    y=[str(strength) for strength in grid["logisticregression__C"]],
    texttemplate="%{z:.0f} %",
    colorscale="Blues",
    showscale=False,
    xgap=2,
    ygap=2,
)
figure.update_layout(
    xaxis={"title": "rank", "type": "category"}, yaxis={"title": "C", "type": "category"}
)
figure.show()
